"""Warnings of a run that learns little: after several steps, once, with the key to change."""

from __future__ import annotations

import pytest

from rlsys.config import DistillationConfig, ModelConfig, RolloutConfig, RunConfig
from rlsys.training.health import STEPS, Health

SYNCHRONOUS = RunConfig()
TAUGHT = RunConfig(distillation=DistillationConfig(teacher=ModelConfig()))
AHEAD = RunConfig(rollout=RolloutConfig(max_staleness=2))
REFLECTION = RunConfig.model_validate(
    {"environment": {"type": "reflection"}, "algorithm": {"method": "rea"}}
)


@pytest.mark.parametrize(
    ("config", "key"),
    [(SYNCHRONOUS, "environment.budgets"), (REFLECTION, "environment.budget")],
)
def test_cut_thoughts_are_warned_of_once(config: RunConfig, key: str) -> None:
    health = Health(config)
    said = [health.warnings({"thought/cut": 0.5, "groups/signal": 0.5}) for _ in range(20)]
    assert said[: STEPS - 1] == [[]] * (STEPS - 1)
    (warning,) = said[STEPS - 1]
    assert "50%" in warning and warning.endswith(f"raise {key}")
    assert said[STEPS:] == [[]] * (20 - STEPS)


def test_each_trouble_names_the_key_to_change() -> None:
    per_step = AHEAD.batch.problems
    for config, steps, name, words in (
        (SYNCHRONOUS, [{"groups/signal": 0.05}] * 5, "no_signal", "batch.group_size"),
        (SYNCHRONOUS, gaps(0.004, 0.02), "mismatch", "model.dtype=float32"),
        (AHEAD, gaps(0.004, 0.02), "mismatch", "rollout.max_staleness"),
        (SYNCHRONOUS, times(9.0, 10.0), "learner_waits", "generation.engines"),
        (SYNCHRONOUS, times(2.0, 10.0), "engines_wait", "rollout.max_staleness=1"),
        (AHEAD, [{"queue": 2.0 * per_step}] * 5, "engines_wait", "learner.ranks"),
    ):
        health = Health(config)
        said = [sentence for step in steps for sentence in health.warnings(step)]
        assert len(said) == 1 and words in said[0], (name, said)
        assert health.standing[f"warning/{name}"] == 1.0
        assert sum(health.standing.values()) == 1.0, name


def test_a_healthy_run_has_no_warning() -> None:
    for config, steps in (
        (SYNCHRONOUS, times(6.0, 10.0)),
        (AHEAD, times(2.0, 10.0)),  # its engines sample while the learner trains
        (AHEAD, [{"queue": 1.0 * AHEAD.batch.problems}] * 5),
        (AHEAD, gaps(0.004, 0.008)),
        (AHEAD, gaps(1e-7, 1e-3)),  # it has grown, but is still too small to matter
        (AHEAD, gaps(0.1, 0.2)),  # bfloat16
        (TAUGHT, [{"groups/signal": 0.0, "time/generation": 2.0, "time/step": 4.0}] * 5),
    ):
        health = Health(config)
        assert [health.warnings(step) for step in steps] == [[]] * len(steps)
        assert set(health.standing.values()) == {0.0}


def test_one_bad_step_among_good_ones_is_no_warning() -> None:
    health = Health(SYNCHRONOUS)
    steps = [{"thought/cut": 0.6 if i == 3 else 0.05, "groups/signal": 0.6} for i in range(20)]
    assert [health.warnings(step) for step in steps] == [[]] * 20


def test_a_warning_stops_standing_when_its_cause_is_gone() -> None:
    health = Health(SYNCHRONOUS)
    for _ in range(STEPS - 1):
        health.warnings({"thought/cut": 0.9})
    assert health.standing == {}, "too few steps to say anything"
    health.warnings({"thought/cut": 0.9})
    assert health.standing == {"warning/truncation": 1.0}
    for _ in range(STEPS):
        health.warnings({"thought/cut": 0.0})
    assert health.standing == {"warning/truncation": 0.0}


def gaps(first: float, later: float) -> list[dict[str, float]]:
    return [{"gap/mean": first}] * STEPS + [{"gap/mean": later}] * STEPS


def times(generation: float, step: float) -> list[dict[str, float]]:
    return [{"time/generation": generation, "time/step": step}] * STEPS
