"""Warnings of a run that learns little: after several steps, once, with the key to change."""

from __future__ import annotations

import pytest

from rlsys.config import AnytimeConfig, EnvironmentConfig, ReflectionEpisodes
from rlsys.training.health import STEPS, Health


@pytest.mark.parametrize(
    ("environment", "key"),
    [(AnytimeConfig(), "environment.budgets"), (ReflectionEpisodes(), "environment.budget")],
)
def test_cut_thoughts_are_warned_of_once(environment: EnvironmentConfig, key: str) -> None:
    health = Health(environment)
    said = [health.warnings({"thought/cut": 0.5, "groups/signal": 0.5}) for _ in range(20)]
    assert said[: STEPS - 1] == [[]] * (STEPS - 1)
    (warning,) = said[STEPS - 1]
    assert "50%" in warning and warning.endswith(f"raise {key}")
    assert said[STEPS:] == [[]] * (20 - STEPS)


def test_groups_without_signal_are_warned_of() -> None:
    health = Health(AnytimeConfig())
    said = [health.warnings({"groups/signal": 0.05}) for _ in range(STEPS)]
    assert "batch.group_size" in said[-1][0]


def test_one_bad_step_among_good_ones_is_no_warning() -> None:
    health = Health(AnytimeConfig())
    steps = [{"thought/cut": 0.6 if i == 3 else 0.05, "groups/signal": 0.6} for i in range(20)]
    assert [health.warnings(step) for step in steps] == [[]] * 20
