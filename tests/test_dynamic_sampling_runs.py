"""A whole run with dynamic sampling: real Ray, vLLM and DeepSpeed on the tiny reasoner."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from commands import Command
from tiny_run import CONFIG

from rlsys.reporting.ledger_file import read_ledger
from rlsys.training.checkpoint_files import read_state
from rlsys.training.ledger import summarise

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

STEPS = 3
# The tiny reasoner solves many of these problems every time, so some groups have no signal.
SETTINGS = {
    "steps": STEPS,
    "algorithm": {"method": "grpo"},
    "environment": {**CONFIG["environment"], "budgets": [64], "answers": 1, "truncation": "mask"},
    "batch": {"problems": 4, "group_size": 4, "dynamic_sampling": 2.5},
    "loss": {"kl_coefficient": 0.01, "kl_in": "reward", "kl_estimator": "k1"},
    "checkpoint": {"every": 2},
}


def test_groups_without_signal_are_replaced_and_named_in_the_ledger(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump({**CONFIG, **SETTINGS}))
    command = Command(tmp_path / "run", "train", path)
    try:
        assert command.wait() == 0, command.output
    finally:
        command.kill_all()
    fates = read_ledger(command.run_dir)
    summary = summarise(fates)
    assert summary.whole
    assert summary.trained == 4 * STEPS
    assert set(summary.dropped) == {"no signal"}
    assert len(fates) <= 10 * STEPS
    for fate in fates:
        assert fate.fate == "trained" or fate.score in (0.0, 1.0)
    # The checkpoint after the last step goes on with the first group that has no line.
    state = read_state(command.run_dir / "checkpoints" / f"step-{STEPS}")
    assert state.next_group == len(fates)
    assert "all right" in command.output
