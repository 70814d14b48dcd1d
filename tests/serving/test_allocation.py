"""Gains of more thinking, estimated from recorded trees, and the greedy use of a pool."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from rlsys.serving.allocation import (
    KINDS,
    PRIOR,
    Trees,
    agreement,
    estimate_gains,
    most_frequent,
    next_request,
    spent,
)

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def trees(
    length: list[int], kind: list[list[int]], score: Sequence[Sequence[float]], answered: int = 2
) -> Trees:
    budgets_K = np.array([4, 8, 12])
    length_Q1 = np.array(length)[:, None]
    return Trees(
        budgets_K=budgets_K,
        thought_QK=np.minimum(length_Q1, budgets_K),
        answered_QK=np.full((len(length), 3), answered),
        ended_QK=length_Q1 <= budgets_K,
        kind_QK=np.array(kind),
        score_QK=np.array(score),
    )


def test_agreement_of_answers() -> None:
    assert most_frequent(["9", "8", "8", "7"]) == ("8", 0.5)
    assert most_frequent(["9", "8"]) == ("9", 0.5)
    kinds = [agreement(s, changed) for changed in (False, True) for s in (0.25, 0.5, 0.75, 1.0)]
    assert kinds == [0, 0, 1, 2, 3, 3, 4, 5]
    assert max(kinds) == KINDS - 1


def test_what_a_request_costs() -> None:
    recorded = trees([5], [[0, 0, 0]], [[0, 0, 0]])
    for charged, every, expected in (
        (False, True, [4, 5, 5]),
        (True, False, [6, 7, 7]),
        (True, True, [6, 9, 11]),
    ):
        assert spent(recorded, charge_answers=charged, at_every_cut=every).tolist() == [expected]


def test_gains_look_beyond_the_next_cut() -> None:
    """The second cut gains nothing, the third one everything: the rate is that of the third."""
    recorded = trees([20] * 4, [[2, 2, 2]] * 4, [[0, 0, 1]] * 4)
    gains = estimate_gains(recorded, recorded.thought_QK.astype(float))
    assert gains.score_KBK[0, 2].tolist() == [0, 0, 1]
    assert gains.tokens_KBK[0, 2].tolist() == [0, 4, 8]
    assert gains.rates_KB()[:, 2].tolist() == [1 / 8, 1 / 4, 0]


def test_rare_kinds_get_the_mean_of_their_cut() -> None:
    agree, differ = [2, 2, 2], [0, 0, 0]
    recorded = trees([20] * 8, [agree] * 4 + [differ] * 4, [[1, 1, 1]] * 4 + [[0, 1, 1]] * 4)
    gains = estimate_gains(recorded, recorded.thought_QK.astype(float))
    mean = 0.5
    assert gains.score_KBK[0, 2, 1] == pytest.approx(PRIOR * mean / (4 + PRIOR))
    assert gains.score_KBK[0, 0, 1] == pytest.approx((4 + PRIOR * mean) / (4 + PRIOR))
    assert gains.score_KBK[0, 5, 1] == pytest.approx(mean)
    by_cut = estimate_gains(recorded, recorded.thought_QK.astype(float), by_kind=False)
    assert np.allclose(by_cut.score_KBK[0, :, 1], mean)


def test_the_next_request_fits_and_gains_most() -> None:
    cases = [
        # cuts, rates, prices, left, chosen
        ([0, 0, 0], [0.1, 0.3, 0.2], [4, 4, 4], 10, 1),
        ([0, 0, 0], [0.1, 0.3, 0.2], [4, 20, 4], 10, 2),
        ([1, 0, 1], [0.2, 0.2, 0.2], [4, 4, 4], 10, 1),
        ([0, 0], [0.0, -1.0], [4, 4], 10, None),
        ([0, 0], [0.5, 0.5], [11, 12], 10, None),
        ([], [], [], 10, None),
    ]
    for cuts, rates, prices, left, chosen in cases:
        assert next_request(cuts, rates, prices, left) == chosen, (cuts, rates, prices)


def test_allocators_of_the_benchmark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Two requests share 20 tokens: one needs the last cut, the other is right at the first."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    table = importlib.import_module("allocation_table")
    asked = trees([20, 20], [[0, 0, 0], [2, 2, 2]], [[0, 0, 1], [1, 1, 1]])
    known = trees([20] * 40, [[0, 0, 0], [2, 2, 2]] * 20, [[0, 0, 1], [1, 1, 1]] * 20)
    served = table.Served(asked, 20.0, False)
    assert table.uniform(served).tolist() == [2, 1]
    assert table.fixed_cap(served).tolist() == [1, 1]
    assert table.oracle(served).tolist() == [2, 0]
    assert table.greedy(known, charged=False, by_kind=True)(served).tolist()[0] == 2
    tight = table.Served(asked, 16.0, False)
    assert table.uniform(tight).tolist() == [1, 1]
    assert table.greedy(known, charged=False, by_kind=True)(tight).tolist() == [2, 0]
    assert table.oracle(tight).tolist() == [2, 0]


def test_recorded_trees_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    table = importlib.import_module("allocation_table")
    texts = {4: ["9", "8", "8", "8"], 8: ["9", "9", "9", "8"]}
    answers = [
        {"budget": budget, "text": text, "score": float(text == "9"), "tokens": 2}
        for budget, all_texts in texts.items()
        for text in all_texts
    ]
    episode = json.dumps({"problem": "3+8", "thought_tokens": 6, "answers": answers})
    rows = list(table.recorded([episode, episode]))
    assert len(rows) == 1
    path = tmp_path / "trees.jsonl"
    path.write_text("".join(map(table._line, rows)))
    found = table.read_trees(path)
    assert found.thought_QK.tolist() == [[4, 6]]
    assert found.ended_QK.tolist() == [[False, True]]
    assert found.kind_QK.tolist() == [[1, 4]]
    assert found.score_QK.tolist() == [[0, 1]]
    assert found.answered_QK.tolist() == [[8, 8]]
