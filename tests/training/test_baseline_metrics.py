"""Metrics of BRPO's baselines from the reports of a batch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from finished_groups import report
from numpy.typing import NDArray

from rlsys.config import RunConfig
from rlsys.config.loading import load_config
from rlsys.training.baseline_metrics import baseline_metrics
from rlsys.types import GroupReport


def batch(lengths: tuple[int, ...] = (64, 64, 64, 64)) -> list[GroupReport]:
    """The groups of tests/algorithms/test_brpo.py: two thoughts under two budgets in each."""
    scores = ([[0, 0], [1, 1]], [[0, 1], [1, 1]])
    return [
        replace(
            report(index, 0),
            numbers={
                "score/16": np.array([row[0] for row in rows], np.float32),
                "score/64": np.array([row[1] for row in rows], np.float32),
                "thought/length": np.array(lengths[2 * index :][:2], np.float32),
            },
        )
        for index, rows in enumerate(scores)
    ]


def config(*words: str) -> RunConfig:
    return load_config(None, ["environment.budgets=[16,64]", *words], RunConfig)


def test_every_slot_has_its_metrics() -> None:
    metrics = baseline_metrics([*batch(), replace(report(2, 0), numbers={})], config())
    assert metrics["baseline/correlation_v1/16"] == 0
    assert metrics["baseline/correlation_v/64"] == pytest.approx(np.sqrt(0.6))
    assert metrics["baseline/variance_v2/16"] == pytest.approx(10 / 11)
    assert metrics["baseline/variance_v/64"] == pytest.approx(5 / 12)
    assert len(metrics) == 2 * 3 * 2


def test_the_mix_is_that_of_the_configuration() -> None:
    # Shares 0 and 16/64. In slot 1, V = .1875, .3125, .375, .5 and R - V = -.1875, .1875, .125, 0.
    metrics = baseline_metrics(batch(), config("algorithm.coefficients=budget"))
    assert metrics["baseline/variance_v/64"] == pytest.approx(7 / 16)


def test_the_decay_is_that_of_the_configuration() -> None:
    reports = [replace(report(0, 0), numbers=numbers) for numbers in three_budgets()]
    words = ("environment.budgets=[16,32,64]", "algorithm.prior=base")
    name = "baseline/variance_v1/64"
    assert baseline_metrics(reports, config(*words))[name] == pytest.approx(4 / 9)
    undecayed = baseline_metrics(reports, config(*words, "algorithm.decay=1"))
    assert undecayed[name] == pytest.approx(1 / 4)


def three_budgets() -> list[dict[str, NDArray[np.float32]]]:
    """One group: a thought that is right at the first of three budgets and at the last, one never.

    In slot 2, R = 1 and 0, and V1 is a third or a half of R.
    """
    scores = {"score/16": [1, 0], "score/32": [0, 0], "score/64": [1, 0]}
    numbers = scores | {"thought/length": [64, 64]}
    return [{name: np.array(values, np.float32) for name, values in numbers.items()}]


def test_a_slot_that_no_thought_reaches_has_no_metric() -> None:
    # A thought of 16 tokens has none in the slot from 16 on.
    metrics = baseline_metrics(batch(lengths=(16, 16, 16, 16)), config())
    assert {name.rpartition("/")[2] for name in metrics} == {"16"}


def test_other_methods_have_none() -> None:
    assert baseline_metrics([replace(report(2, 0), numbers={})], config()) == {}
    grpo = load_config(
        None,
        ["environment.budgets=[16]", "environment.answers=1", "algorithm.method=grpo"],
        RunConfig,
    )
    assert baseline_metrics(batch(), grpo) == {}
