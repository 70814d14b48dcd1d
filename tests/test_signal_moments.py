"""Stop signals at ten moments of a run, to the driver alone and to its whole process group.

A seed chooses the signal, its receiver and the time after each moment, so that a failure can be
repeated. The gate has two moments; `make chaos` has all of them.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from commands import START_SECONDS, Command, wait_until
from tiny_run import CONFIG

from rlsys.launch.processes import weights_folder
from rlsys.signals import STOP_SIGNALS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SEED = 0


class Moment(NamedTuple):
    """When a signal comes."""

    wait_for: Callable[[Command], object]
    """Returns at the moment."""
    spread_s: float = 0.3
    """The signal comes up to so many seconds later."""
    overrides: tuple[str, ...] = ("steps=100000", "checkpoint.every=1000")
    may_finish: bool = False
    """True if all steps are trained by then, so that the run may end with exit code 0."""


def handles_signals(command: Command) -> bool:
    """True once the command has a handler for SIGTERM, which the kernel knows."""
    for process in command.processes():
        status = Path(f"/proc/{process.pid}/status").read_text()
        caught = int(status.split("SigCgt:")[1].split()[0], 16)
        return bool(caught >> (signal.SIGTERM - 1) & 1)
    return False


def appears(command: Command, pattern: str) -> bool:
    assert wait_until(lambda: any(command.run_dir.glob(pattern)), START_SECONDS, pause=0.005)
    return True


def sync_after_step(command: Command, step: int) -> None:
    bucket = weights_folder(command.run_dir) / "bucket-0.safetensors"
    if step:
        command.wait_for_step(step)
    before = bucket.stat().st_mtime_ns if bucket.exists() else 0
    changed = lambda: bucket.exists() and bucket.stat().st_mtime_ns != before  # noqa: E731
    assert wait_until(changed, START_SECONDS, pause=0.005)


def engines_start(command: Command) -> None:
    assert wait_until(lambda: command.find("GenerationActor") != [], START_SECONDS)


SHORT = ("steps=3", "checkpoint.every=1000")
MOMENTS = {
    "the command starts": Moment(
        lambda command: wait_until(lambda: handles_signals(command), 60, pause=0.01), 0.05
    ),
    "the configuration is read": Moment(
        lambda command: wait_until(lambda: handles_signals(command), 60, pause=0.01), 2.0
    ),
    "Ray starts": Moment(lambda command: command.wait_for("held-out problems"), 2.0),
    "engines start": Moment(engines_start, 5.0),
    "first sampling": Moment(lambda command: sync_after_step(command, 0), 1.0),
    "training step": Moment(lambda command: command.wait_for_step(3)),
    "weight sync": Moment(lambda command: sync_after_step(command, 2), 0.02),
    "checkpoint": Moment(
        lambda command: appears(command, "checkpoints/.step-*"),
        0.05,
        ("steps=100000", "checkpoint.every=2"),
    ),
    "export": Moment(lambda command: appears(command, "*export*"), 0.05, SHORT, True),
    "end": Moment(lambda command: appears(command, "export/model.safetensors"), 3.0, SHORT, True),
}
IN_THE_GATE = {"engines start", "training step"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in IN_THE_GATE else pytest.mark.chaos)
        for name in MOMENTS
    ],
)
def test_a_signal_ends_the_run_in_order(tmp_path: Path, name: str) -> None:
    moment, rng = MOMENTS[name], random.Random(f"{SEED} {name}")
    number, to_group = rng.choice(STOP_SIGNALS), rng.random() < 0.5
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(CONFIG))
    command = Command(tmp_path / "run", "train", path, *moment.overrides)
    try:
        moment.wait_for(command)
        time.sleep(rng.uniform(0, moment.spread_s))
        send: Callable[[int], Any] = command.signal_group if to_group else command.signal
        send(number)
        send(number)  # as a scheduler that asks twice
        code = command.wait(200)
        where = (name, number, to_group, code, command.output)
        assert code == 130 or (moment.may_finish and code == 0), where
        assert command.all_gone(60), (where, command.left())
        assert not weights_folder(command.run_dir).exists(), where
        assert "Traceback" not in command.output, where
        last = max((row["step"] for row in command.steps()), default=0)
        saved = [path.name for path in (command.run_dir / "checkpoints").glob("step-*")]
        assert f"step-{last}" in saved if last else not saved, (where, saved)
        if code == 0:
            assert (command.run_dir / "export" / "model.safetensors").exists(), where
    finally:
        command.kill_all()
