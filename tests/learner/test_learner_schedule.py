"""The learning-rate schedule against numbers worked by hand."""

from __future__ import annotations

import pytest

from learner.schedule import learning_rate
from rlsys.config import OptimizerConfig


def rates(schedule: str, warmup: int, total: int, steps: range) -> list[float]:
    config = OptimizerConfig(learning_rate=1.0, schedule=schedule, warmup_steps=warmup)
    return [learning_rate(step, config, total) for step in steps]


def test_constant() -> None:
    assert rates("constant", 0, 3, range(5)) == [1.0, 1.0, 1.0, 1.0, 1.0]


def test_warm_up_reaches_the_full_rate_at_its_last_step() -> None:
    assert rates("constant", 4, 10, range(6)) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_a_warm_up_may_be_a_share_of_all_steps() -> None:
    config = OptimizerConfig(learning_rate=1.0, warmup_ratio=0.3)
    rates = [learning_rate(step, config, 11) for step in range(5)]
    assert rates == [0.25, 0.5, 0.75, 1.0, 1.0]  # 3.3 steps, rounded up


def test_linear_after_warm_up_falls_to_zero_and_stays() -> None:
    expected = [0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    assert rates("linear", 2, 6, range(8)) == pytest.approx(expected)


def test_cosine() -> None:
    expected = [1.0, 0.8535533906, 0.5, 0.1464466094, 0.0]
    assert rates("cosine", 0, 4, range(5)) == pytest.approx(expected)


def test_warm_up_longer_than_the_run() -> None:
    assert rates("cosine", 8, 4, range(4)) == [0.125, 0.25, 0.375, 0.5]
