"""Faults of whole runs: processes that die or hang, on the tiny reasoner.

A run without faults is the measure: seeds are per request, so a synchronous run whose engine was
killed must end with the same weights, bit for bit.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import yaml
from commands import Command, started_processes, wait_until
from disks import disk, fill, make_room
from tiny_run import CONFIG, weights

from rlsys.launch.processes import weights_folder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

Start = Callable[..., Command]


@pytest.fixture(scope="module")
def config_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("faults") / "run.yaml"
    path.write_text(yaml.safe_dump(CONFIG))
    return path


@pytest.fixture
def start(tmp_path: Path, config_file: Path) -> Iterator[Start]:
    """Starts `rlsys train`; nothing of it outlives the test."""
    commands: list[Command] = []

    def start_one(*overrides: str) -> Command:
        commands.append(Command(tmp_path / "run", "train", config_file, *overrides))
        return commands[-1]

    yield start_one
    for command in commands:
        command.kill_all()


@pytest.fixture(scope="module")
def undisturbed(config_file: Path) -> dict[str, Any]:
    """The weights that a run without faults ends with."""
    command = Command(config_file.parent / "undisturbed", "train", config_file)
    try:
        assert command.wait() == 0, command.output
    finally:
        command.kill_all()
    return weights(command)


def ends_as(command: Command, expected: dict[str, Any]) -> None:
    """The command ends with all steps and these weights, and leaves no process behind."""
    assert command.wait() == 0, command.output
    assert command.all_gone(60), command.left()
    assert not weights_folder(command.run_dir).exists()
    assert [row["step"] for row in command.steps()] == list(range(1, CONFIG["steps"] + 1))
    found = weights(command)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, name)


def vllm_process(command: Command) -> psutil.Process:
    """The process of vLLM's own that the only engine's actor started."""
    (process,) = started_processes(actor(command, "GenerationActor"))
    return process


def actor(command: Command, title: str, index: int = 0) -> psutil.Process:
    return sorted(command.find(title), key=lambda process: process.pid)[index]


def test_the_only_engine_is_killed(start: Start, undisturbed: dict[str, Any]) -> None:
    command = start()
    command.wait_for_step(2)
    assert command.listens() == set()
    actor(command, "GenerationActor").kill()
    command.wait_for_step(12)
    vllm_process(command).kill()
    ends_as(command, undisturbed)
    # Both kills may come during a weight sync.
    found = re.findall("engine 0 (.*); it is started again", command.output)
    assert found[0] in {"died", "died during a weight sync"}
    assert found[-1] in {"lost the processes of vLLM", "died during a weight sync"}
    assert command.output.count("engine 0 serves again with the weights of version") == 2
    restarts = [row.get("engines/restarts", 0) for row in command.steps()]
    assert restarts == sorted(restarts)
    assert (restarts[0], restarts[-1]) == (0, len(found))
    assert command.steps()[-1]["engines/alive"] == 1


@pytest.mark.chaos
def test_environment_and_grading_actors_are_killed(
    start: Start, undisturbed: dict[str, Any]
) -> None:
    command = start()
    command.wait_for_step(3)
    actor(command, "EnvironmentActor").kill()
    command.wait_for_step(8)
    actor(command, "GradingActor").kill()
    ends_as(command, undisturbed)
    for name in ("environment actor 0", "grading actor 0"):
        assert command.output.count(f"{name} was started again by Ray, because it died") == 1


@pytest.mark.chaos
def test_a_learner_rank_is_killed(start: Start, undisturbed: dict[str, Any]) -> None:
    command = start()
    command.wait_for_step(7)
    actor(command, "LearnerWorker").kill()
    ends_as(command, undisturbed)
    assert "the learner is started again and goes on after step" in command.output


@pytest.mark.chaos
def test_one_of_two_engines_is_killed_during_a_sync(start: Start) -> None:
    # Without an end: the other engine trains on, however long the killed one takes to serve again.
    command = start(
        "generation.engines=2", "sync.bucket_mib=1", "rollout.max_staleness=1", "steps=100000"
    )
    command.wait_for_step(3)
    bucket = weights_folder(command.run_dir) / "bucket-0.safetensors"
    before = bucket.stat().st_mtime_ns
    assert wait_until(lambda: bucket.stat().st_mtime_ns != before, 60, pause=0.002)
    actor(command, "GenerationActor").kill()
    command.wait_for("serves again with the weights of version")
    command.wait_for_step(max(row["step"] for row in command.steps()) + 3)
    command.signal(signal.SIGINT)
    assert command.wait() == 130, command.output
    assert command.all_gone(60), command.left()
    steps = command.steps()
    assert [row["step"] for row in steps] == list(range(1, len(steps) + 1))
    assert steps[-1]["engines/alive"] == 2
    assert {row["engines/alive"] for row in steps if "engines/alive" in row} == {1, 2}
    assert all(row["gap/canary"] < 1e-3 for row in steps)


@pytest.mark.chaos
def test_engines_that_hang(start: Start, undisturbed: dict[str, Any]) -> None:
    """The actor first, then vLLM's own process below it."""
    command = start("generation.heartbeat_s=6")
    command.wait_for_step(2)
    os.kill(actor(command, "GenerationActor").pid, signal.SIGSTOP)
    command.wait_for("did not answer for generation.heartbeat_s 6 s; it is started again")
    command.wait_for("engine 0 serves again")
    step = max(row["step"] for row in command.steps())
    command.wait_for_step(step + 2)
    os.kill(vllm_process(command).pid, signal.SIGSTOP)
    ends_as(command, undisturbed)
    assert "(vLLM hangs)" in command.output


@pytest.mark.chaos
def test_a_learner_that_hangs_is_started_again(start: Start, undisturbed: dict[str, Any]) -> None:
    command = start("watchdog.progress_s=60")
    command.wait_for_step(7)
    rank = actor(command, "LearnerWorker")
    os.kill(rank.pid, signal.SIGSTOP)
    ends_as(command, undisturbed)
    again = "the learner is started again and goes on after step"
    (line,) = [line for line in command.output.splitlines() if again in line]
    assert "nothing has moved for watchdog.progress_s 60 s" in line
    stacks = (command.run_dir / "stacks" / "waiting.txt").read_text()
    assert "learner rank 0 does not answer" in stacks
    assert f"process {rank.pid}" in stacks
    assert not rank.is_running()


@pytest.mark.chaos
def test_a_collective_that_never_ends(start: Start) -> None:
    """One of two ranks hangs, so the other one waits for it in a reduction."""
    command = start("watchdog.progress_s=120", "learner.ranks=2", "learner.zero_stage=3")
    command.wait_for_step(7)
    os.kill(actor(command, "LearnerWorker", index=1).pid, signal.SIGSTOP)
    assert command.wait() == 0, command.output
    assert command.all_gone(60), command.left()
    assert [row["step"] for row in command.steps()] == list(range(1, CONFIG["steps"] + 1))
    assert "the learner is started again and goes on after step" in command.output


@pytest.mark.chaos
def test_a_learner_that_hangs_too_often_is_named(start: Start) -> None:
    command = start("watchdog.progress_s=60", "steps=100000", "learner.restarts=0")
    command.wait_for_step(2)
    rank = actor(command, "LearnerWorker")
    os.kill(rank.pid, signal.SIGSTOP)
    assert command.wait(150) == 1, command.output
    assert command.all_gone(60), command.left()
    (line,) = [line for line in command.output.splitlines() if line.startswith("rlsys: ")]
    for words in (
        "nothing has moved for watchdog.progress_s 60 s; the run waits for the learner in training",
        "learner rank 0 does not answer",
        f"process {rank.pid}",
        "is stopped by a signal",
    ):
        assert words in line
    stacks = command.run_dir / "stacks"
    assert "learner rank 0 does not answer" in (stacks / "waiting.txt").read_text()
    environment = next(stacks.glob("*EnvironmentActor*"))
    assert "Thread 0x" in environment.read_text() or "Thread " in environment.read_text()


@pytest.mark.chaos
def test_other_ranks_at_another_stage_go_on(start: Start) -> None:
    """Two ranks at ZeRO stage 3, then one at stage 2, then one without ZeRO."""
    layouts = {10: (2, 3), 20: (1, 2), 30: (1, 0)}
    for steps, (ranks, stage) in layouts.items():
        command = start(f"steps={steps}", f"learner.ranks={ranks}", f"learner.zero_stage={stage}")
        assert command.wait() == 0, command.output
        rows = command.steps()
        assert [row["step"] for row in rows] == list(range(1, steps + 1))
        assert all(row["gap/canary"] < 1e-3 for row in rows)
        if steps > 10:
            assert f"divided anew for 1 rank at ZeRO stage {stage}" in command.output
            assert f"resuming after step {steps - 10} of {steps}" in command.output


@pytest.mark.chaos
def test_a_disk_that_becomes_full(
    start: Start, tmp_path: Path, undisturbed: dict[str, Any]
) -> None:
    with disk(tmp_path / "run", "96m") as run_dir:  # a checkpoint has 14 MB
        command = start()
        command.wait_for_step(7)
        fill(run_dir)
        assert command.wait() == 1, command.output
        assert command.all_gone(60), command.left()
        (line,) = [line for line in command.output.splitlines() if line.startswith("rlsys: ")]
        assert "the disk" in line and "full" in line and str(run_dir) in line
        assert "Traceback" not in command.output
        make_room(run_dir)
        ends_as(start(), undisturbed)
