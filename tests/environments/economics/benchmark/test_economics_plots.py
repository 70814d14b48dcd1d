"""Every plot is drawn from the file alone, whatever the episodes are like."""

from pathlib import Path

import pytest

from rlsys.environments.economics.benchmark.plot_parts import spread
from rlsys.environments.economics.benchmark.plots import plot_results
from rlsys.environments.economics.benchmark.results import EpisodeResult, write_results


def test_labels_move_as_little_as_possible() -> None:
    for values, expected in (
        ([1.0, 5.0], [1.0, 5.0]),
        ([1.0, 1.0, 5.0], [0.5, 1.5, 5.0]),
        ([5.0, 1.0, 1.2], [5.0, 0.6, 1.6]),
        ([0.0, 0.0, 0.9], [-0.7, 0.3, 1.3]),
        ([], []),
    ):
        assert spread(values, 1.0) == pytest.approx(expected), values


def episode(seed: int, answered: int, types: bool = True) -> EpisodeResult:
    return EpisodeResult(
        seed=seed,
        questions=4,
        budget=100,
        tokens=tuple(10 * (i + 1) + seed for i in range(answered)),
        right=(True,) * answered,
        rewards=tuple(1.0 - 0.1 * i for i in range(answered)),
        types=("GSM_SV", "MATH_SV", "GSM_SV", None) if types else (None,) * answered,
        oracle=4.0 if types else None,
    )


def test_seven_plots_of_agents_that_differ_in_everything(tmp_path: Path) -> None:
    raw = {
        "whole": [episode(seed, 4) for seed in range(8)],
        "torn": [episode(seed, 1 + seed % 4, types=False) for seed in range(6)],
        "silent": [episode(0, 0)],
    }
    write_results(tmp_path / "results.json", raw)
    written = plot_results(tmp_path / "results.json", tmp_path)
    assert [path.stem for path in written] == [
        "comparison",
        "utilisation",
        "pacing",
        "tokens_per_problem",
        "allocation",
        "reward_over_steps",
        "reward_by_budget",
    ]
    for path in written:
        assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.filterwarnings("error")
def test_episodes_of_a_single_problem_are_drawn_too(tmp_path: Path) -> None:
    one = EpisodeResult(
        seed=1, questions=1, budget=100, tokens=(10,), right=(True,), rewards=(1.0,), types=("a",)
    )
    write_results(tmp_path / "results.json", {"alone": [one]})
    assert len(plot_results(tmp_path / "results.json", tmp_path)) == 7
