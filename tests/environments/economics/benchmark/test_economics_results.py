"""Numbers of an episode, means with intervals, and the file that holds them."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlsys.environments.economics.benchmark.results import (
    EpisodeResult,
    read_results,
    write_results,
)
from rlsys.environments.economics.benchmark.summary import (
    allocation,
    paired,
    summary,
)
from rlsys.errors import DataError
from rlsys.estimates import bootstrap_mean


def episode(seed: int = 1, **changes: Any) -> EpisodeResult:
    """Four of ten questions answered, two right, with 100 of 80 tokens."""
    result = EpisodeResult(
        seed=seed,
        questions=10,
        budget=80,
        tokens=(10, 20, 30, 40),
        right=(True, False, True, False),
        rewards=(1.0, -0.1, 1.0, -1.0),
        end_reward=-0.6,
        types=("easy", "hard", "easy", "hard"),
    )
    return replace(result, **changes)


def test_b20_accuracy_counts_what_was_never_answered() -> None:
    numbers = episode().numbers()
    assert numbers["accuracy"] == 0.2
    assert numbers["accuracy_answered"] == 0.5
    assert numbers["answered"] == 0.4
    assert (numbers["utilisation"], numbers["utilisation_clamped"]) == (1.25, 1.0)
    assert (numbers["overspend_tokens"], numbers["over_budget"]) == (20.0, 1.0)
    assert numbers["tokens_per_answer"] == 25.0
    assert numbers["correct_per_1000_tokens"] == 20.0
    assert numbers["total_reward"] == pytest.approx(0.9)
    assert "regret" not in numbers
    assert episode(oracle=2.0).numbers()["regret"] == pytest.approx(1.1)


def test_an_episode_without_an_answer() -> None:
    numbers = episode(tokens=(), right=(), rewards=(), types=()).numbers()
    assert numbers["accuracy_answered"] == numbers["tokens_per_answer"] == 0.0


def test_regret_of_some_episodes_is_no_regret() -> None:
    assert "regret" in summary([episode(oracle=1.0), episode(oracle=2.0)])
    assert "regret" not in summary([episode(oracle=1.0), episode()])


def test_bootstrap_interval_of_a_known_sample() -> None:
    mean, low, high = bootstrap_mean([0.0, 1.0] * 50)
    assert mean == 0.5
    assert 0.38 < low < 0.43
    assert 0.57 < high < 0.62
    assert bootstrap_mean([3.0]) == (3.0, 3.0, 3.0)


def test_differences_are_paired_by_seed_and_budget() -> None:
    better = [episode(seed, rewards=(2.0, -0.1, 1.0, -1.0)) for seed in (1, 2, 3)]
    other = [episode(3), episode(2, budget=90), episode(1)]
    (row,) = paired({"a": better, "b": other})
    assert (row["agent"], row["over"], row["episodes"]) == ("a", "b", 2)
    assert row["total_reward"] == pytest.approx({"mean": 1.0, "low": 1.0, "high": 1.0})
    (row,) = paired({"a": better, "c": [episode(9)]})
    assert row == {"agent": "a", "over": "c", "episodes": 0}


def test_allocation_by_type() -> None:
    rows = allocation([episode(), episode(tokens=(12, 20, 36, 40))])
    assert list(rows) == ["easy", "hard"]
    assert rows["easy"]["answers"] == 4
    assert rows["easy"]["tokens"]["mean"] == 22.0
    assert rows["easy"]["budget_share"] == 88 / 160
    assert (rows["easy"]["right"], rows["hard"]["right"]) == (1.0, 0.0)
    kinds = tuple(f"t_{i}" for i in (10, 9, 2, 1))
    assert list(allocation([episode(types=kinds)])) == ["t_1", "t_2", "t_9", "t_10"]
    assert list(allocation([episode(types=(None,) * 4)])) == ["hidden"]


def test_a_file_holds_everything_and_reads_back(tmp_path: Path) -> None:
    raw = {"a": [episode(1, oracle=1.0), episode(2, oracle=1.5)], "b": [episode(1, failures=2)]}
    path = tmp_path / "new" / "results.json"
    write_results(path, raw, settings={"seed": 1})
    assert read_results(path) == raw
    tree = json.loads(path.read_text())
    assert tree["raw"]["a"][0]["tokens"] == [10, 20, 30, 40]
    assert tree["summary"]["a"]["regret"]["mean"] == pytest.approx(0.35)
    assert tree["paired"][0]["episodes"] == 1
    assert set(tree["allocation"]["b"]) == {"easy", "hard"}
    assert tree["settings"] == {"seed": 1}


def spoilt(path: Path, spoil: Callable[..., Any]) -> str:
    write_results(path, {"a": [episode()]})
    tree = json.loads(path.read_text())
    spoil(tree)
    path.write_text(json.dumps(tree))
    with pytest.raises(DataError) as caught:
        read_results(path)
    return str(caught.value)


def test_files_that_hold_no_results(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    with pytest.raises(DataError, match="cannot read the results"):
        read_results(path)
    path.write_text("{")
    with pytest.raises(DataError, match="is not valid JSON"):
        read_results(path)
    path.write_text("[]")
    with pytest.raises(DataError, match="not a results file"):
        read_results(path)
    assert "not a results file" in spoilt(path, lambda tree: tree.pop("format"))
    assert "raw" in spoilt(path, lambda tree: tree.pop("raw"))
    assert "raw.a.0.seed" in spoilt(path, lambda tree: tree["raw"]["a"][0].update(seed="x"))
    assert "do not fit" in spoilt(path, lambda tree: tree["raw"]["a"][0].update(right=[True]))
    assert "3 types" in spoilt(path, lambda tree: tree["raw"]["a"][0].update(types=["x"] * 3))
    assert "budget of 0" in spoilt(path, lambda tree: tree["raw"]["a"][0].update(budget=0))
    assert "no episode of 'a'" in spoilt(path, lambda tree: tree["raw"].update(a=[]))


def test_the_evaluation_of_a_run_is_one_more_agent(tmp_path: Path) -> None:
    turn = {"problems": 10.0, "total_budget": 80.0, "type": "easy", "reward": 1.1}
    turns = [
        {**turn, "charged": 30.0, "verdict": "right"},
        {**turn, "charged": 50.0, "verdict": "wrong", "reward": -1.0, "end_reward": -0.8},
    ]
    path = tmp_path / "mine/samples/evaluation-80.jsonl"
    path.parent.mkdir(parents=True)
    turns[0]["reply"] = "separators of lines: \u2028 \u2029 \x85"
    lost = "{}"
    rows = [lost, json.dumps({"seed": 7, "turns": turns}, ensure_ascii=False), lost]
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    (name, (played,)), *_ = read_results(path).items()
    assert name == "mine@80"
    assert (played.seed, played.questions, played.budget) == (7, 10, 80)
    assert (played.tokens, played.right) == ((30, 50), (True, False))
    assert played.total_reward == pytest.approx(0.1)
    assert played.end_reward == -0.8


def test_episodes_of_another_environment_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "evaluation-1.jsonl"
    path.write_text('{"problem": "3+8"}\n')
    with pytest.raises(DataError, match="is not an evaluation of economics episodes"):
        read_results(path)
