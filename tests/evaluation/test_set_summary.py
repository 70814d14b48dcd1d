"""Tables, votes, comparisons and files of evaluations, against numbers worked out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from evaluated import sample_row, write_results
from typer.testing import CliRunner

from rlsys.cli.app import app
from rlsys.errors import DataError, RunFolderError
from rlsys.estimates import Estimate
from rlsys.evaluation.comparison import compare, read_method
from rlsys.evaluation.records import RESULTS, differences, read_results
from rlsys.evaluation.summary import results_by_set, sample_counts, summarise
from rlsys.evaluation.votes import vote_numbers

EASY = [
    # Problem a: under 8 tokens one of four is right; under 32 three are.
    sample_row("easy", "a", 0, [(8, 1, "1"), (32, 1, "1")]),
    sample_row("easy", "a", 1, [(8, 0, "2"), (32, 1, "1.0")]),
    sample_row("easy", "a", 2, [(8, 0, "2.0"), (32, 1, "1")]),
    sample_row("easy", "a", 3, [(8, 0, None), (32, 0, "invalid")]),
    # Problem b: never right; the thought has 40 tokens.
    *(sample_row("easy", "b", k, [(8, 0, "5"), (32, 0, "5")], thought=40) for k in range(4)),
]
HARD = [sample_row("hard", "c", k, [(8, 0, "x"), (32, 1, "y")], thought=30) for k in range(2)]


def row_of(rows: list[dict[str, Any]], name: str, budget: int | str) -> dict[str, Any]:
    return next(row for row in rows if row["set"] == name and row["budget"] == budget)


def test_the_numbers_of_a_set() -> None:
    rows = summarise(results_by_set(EASY + HARD))
    small, large = (row_of(rows, "easy", budget) for budget in (8, 32))
    assert small["accuracy"] == 1 / 8
    assert large["accuracy"] == 3 / 8
    assert row_of(rows, "easy", "anytime")["accuracy"] == 1 / 4
    # Of the pairs of a's samples, 3 of 6 hold the right one under 8 tokens, all under 32.
    assert (small["pass@2"], small["pass@4"]) == (1 / 4, 1 / 2)
    assert (large["pass@2"], large["pass@4"]) == (1 / 2, 1 / 2)
    # Under 8 tokens 2 and 2.0 are one answer with two votes, so the majority of four is wrong.
    # The first pair is a tie of right and wrong, the second a single vote for a wrong answer.
    assert (small["majority@2"], small["majority@4"]) == (1 / 8, 0)
    assert (large["majority@2"], large["majority@4"]) == (3 / 8, 1 / 2)
    assert (small["thought_tokens"], large["thought_tokens"]) == (8, (20 + 32) / 2)
    assert large["answer_tokens"] == 3
    assert (small["cut_share"], large["cut_share"]) == (1, 1 / 2)
    assert (small["invalid_share"], large["invalid_share"]) == (0, 1 / 8)


def test_the_average_counts_every_set_once_and_holds_what_all_sets_have() -> None:
    rows = summarise(results_by_set(EASY + HARD))
    average = row_of(rows, "average", 32)
    assert average["accuracy"] == pytest.approx((3 / 8 + 1) / 2)
    assert average["pass@2"] == pytest.approx((1 / 2 + 1) / 2)
    assert "pass@4" not in average  # the hard set has two samples
    other = [sample_row("hard", "c", 0, [(16, 1, "y")])]
    assert {row["set"] for row in summarise(results_by_set(EASY + other))} == {"easy", "hard"}


def test_token_ratios_go_both_ways() -> None:
    longer = [sample_row("hard", "c", 0, [(8, 0, "x"), (32, 1, "y")], thought=30, tokens=33)]
    rows = summarise(results_by_set(EASY + HARD), results_by_set(EASY + longer))
    hard, average = (row_of(rows, name, 32) for name in ("hard", "average"))
    assert hard["token_ratio"] == pytest.approx(100 * 33 / 63)
    assert hard["token_ratio_reverse"] == pytest.approx(100 * 63 / 33)
    assert average["token_ratio"] == pytest.approx((100 + 100 * 33 / 63) / 2)
    assert average["token_ratio_of_means"] == pytest.approx(100 * (29 + 33) / (29 + 63))


def test_what_counts_as_the_same_answer() -> None:
    answers = [
        ("1/2", False),
        ("0.5", False),
        ("", False),
        (None, False),
        ("3", True),
        ("4", False),
    ]
    assert vote_numbers(answers) == {"1/2": 1, "0.5": 1, "4": 2}
    assert [sample_counts(samples) for samples in (1, 2, 6, 8)] == [[], [2], [2, 4, 6], [2, 4, 8]]


def test_a_killed_write_loses_one_row_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    folder = write_results(tmp_path / "killed", EASY, tail=b'{"id": "easy/b/9", "se\xc3')
    assert read_results(folder) == EASY
    with pytest.raises(RunFolderError, match="eval sets"):
        read_results(tmp_path)
    (folder / RESULTS).write_text('{"id": 1}\n')
    with pytest.raises(DataError, match="line 1"):
        read_results(folder)


def test_rows_under_other_budgets_are_not_mixed() -> None:
    with pytest.raises(DataError, match="different budgets"):
        results_by_set([*HARD, sample_row("hard", "d", 0, [(16, 1, "y")])])


def test_the_order_of_rows_does_not_matter() -> None:
    assert summarise(results_by_set(EASY[::-1])) == summarise(results_by_set(EASY))


def test_settings_that_change_what_a_row_says() -> None:
    before = {
        "seed": 0,
        "run_dir": "a",
        "data": {"sets": {"x": {"samples": 1, "limit": 4, "path": ["f"]}, "y": {"samples": 1}}},
    }
    now = {
        "seed": 1,
        "run_dir": "b",
        "data": {"sets": {"x": {"samples": 8, "limit": None, "path": ["g"]}, "z": {}}},
    }
    assert list(differences(before, now)) == [
        ("seed", 0, 1),
        ("data.sets.x.path", ["f"], ["g"]),
    ]


def evaluation(folder: Path, scores: list[float], tokens: int = 3) -> Path:
    """One set of problems with these scores under 8 tokens, and all right under 32."""
    return write_results(
        folder,
        [
            sample_row("s", f"p{i}", 0, [(8, score, "1"), (32, 1, "1")], tokens=tokens)
            for i, score in enumerate(scores)
        ],
    )


def test_compared_methods_are_paired_by_problem_and_seed(tmp_path: Path) -> None:
    start = evaluation(tmp_path / "start", [0, 1, 0, 1])
    seeds = [evaluation(tmp_path / f"seed{i}", [1, 1, 0, i], tokens=14) for i in (0, 1)]
    methods = [read_method(str(start)), read_method(",".join(map(str, seeds)))]
    first, second = compare(methods)
    assert (first.letter, first.seeds, first.anytime.mean) == ("A", 1, 0.75)
    assert first.anytime_difference is None
    assert (second.letter, second.seeds) == ("B", 2)
    assert second.anytime.mean == pytest.approx((0.75 + 0.875) / 2)
    assert second.anytime_difference is not None
    assert second.anytime_difference.mean == pytest.approx(0.0625)
    assert second.anytime_difference.low < 0 < second.anytime_difference.high
    assert second.final_difference == Estimate(0.0, 0.0, 0.0)
    # 20 tokens of thought, then 3 or 14 of the answer.
    assert second.tokens == 34
    assert second.token_ratio == pytest.approx(100 * 34 / 23)
    assert second.token_ratio_reverse == pytest.approx(100 * 23 / 34)


def test_what_cannot_be_paired_is_refused(tmp_path: Path) -> None:
    two = [str(evaluation(tmp_path / f"a{i}", [0, 1])) for i in range(3)]
    three = str(evaluation(tmp_path / "b", [0, 1, 1]))
    other = str(write_results(tmp_path / "c", HARD))
    cases = [
        ([two[0], three], "3 problems"),
        ([two[0], other], "no set in common"),
        ([",".join(two), ",".join(two[:2])], "cannot be paired"),
        ([two[0], str(write_results(tmp_path / "empty", []))], "no finished sample"),
    ]
    for words, reason in cases:
        with pytest.raises(DataError, match=reason):
            compare([read_method(word) for word in words])


def test_the_command_prints_letters_and_differences(tmp_path: Path) -> None:
    folders = [str(evaluation(tmp_path / name, [0, 1])) for name in ("a", "b")]
    result = CliRunner().invoke(app, ["eval", "compare", *folders])
    assert result.exit_code == 0, result.output
    assert f"B: 1 training seed, {folders[1]}" in result.output
    assert "+0.000 [+0.000, +0.000]" in result.output
    assert CliRunner().invoke(app, ["eval", "compare", str(tmp_path)]).exit_code == 2
