"""What is counted in the samples of Countdown runs, and baselines without the own return."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from rlsys.algorithms.brpo import baselines

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("countdown_runs")


def episode(thought: str, tokens: int, cut: int, *scores: float) -> dict[str, Any]:
    cuts = (min(cut, tokens), tokens)
    answers = [{"cut": c, "score": score} for c, score in zip(cuts, scores, strict=True)]
    return {
        "problem": "19,35,44->98",
        "thought": thought,
        "thought_tokens": tokens,
        "answers": answers,
    }


def test_ends_steps_and_right_answers_are_counted(runs: ModuleType) -> None:
    sampled = [
        episode("44+35=79:19,79;79+19=98!44+35=79;79+19=98</think>", 100, 128, 1.0, 1.0),
        episode("44+35=79:19,79;79-19=61?44+35=79;79-19=61", 200, 128, 1.0, 0.0),
        episode("35/19=2:2,44", 1024, 128, 0.0, 0.0),
    ]
    assert +runs.counts(sampled) == {
        "thoughts": 3,
        "found": 1,
        "found, right": 1,
        "given up": 1,
        "cut": 1,
        "true solutions": 1,
        "steps": 9,
        "wrong steps": 3,
        "whole at 128": 1,
        "cut at 128": 2,
        "cut at 128, right": 1,
        "tokens": 94,
        "reached": 1,
        "tokens after the target": 18,
    }


def test_a_solution_is_true_only_if_steps_numbers_and_target_are_right(runs: ModuleType) -> None:
    for path, true in (
        ("44+35=79;79+19=98", True),
        ("35+19=54;54+44=98", True),
        ("44+35=78;78+19=98", False),  # two wrong results that make up for each other
        ("44+35=79;79-19=60", False),  # not the target
        ("79+19=98", False),  # a number that is not given
        ("44+35=79;79+19", False),  # cut
    ):
        assert runs.writes_solution("19,35,44->98", f"44-19=25!{path}") is true, path
    assert not runs.writes_solution("98,2->98", "98/2=49")


def test_shares_without_the_own_return_are_those_of_the_other_thoughts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Slot 2 of 4, where V has half of V1: compared with the mean of the 7 other returns."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    tables = importlib.import_module("countdown_runs_table")
    scores = np.random.default_rng(0).random((5, 8, 4))  # 5 problems, 8 thoughts, 4 budgets
    columns = []
    for group in (baselines(scores_GM, np.full(4, 0.25)) for scores_GM in scores):
        returns_G, v1_G, v_G = group.returns[:, 2], group.v1[:, 2], group.v[:, 2]
        others_G = (returns_G.sum() - returns_G) / 7
        v2_G = np.full(8, returns_G.mean())
        columns.append((returns_G, v1_G, v2_G, v_G, others_G, (v1_G + others_G) / 2))
    returns_N, *baselines_N = np.concatenate(columns, axis=1)
    shares = [np.var(returns_N - b_N) / np.var(returns_N) for b_N in baselines_N]
    found = tables.without_own(np.array([shares[:3]]), 0.5, 8)
    assert np.ravel(found) == pytest.approx(shares[3:])
