"""Processes of whole runs killed on GPUs: one card that learner and engine share, or two over NCCL.

python -m pytest -m gpu tests/test_gpu_faults.py        (10 minutes; an engine starts in 90 s)
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import yaml
from commands import Command, started_processes, wait_until
from tiny_run import CONFIG, ON_GPUS

CARDS = torch.cuda.device_count()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(CARDS == 0, reason="needs a CUDA device"),
]
SHARED, SPLIT = 0.5, 1.0
"""Share of a card that the learner and the engine have."""
LAYOUTS = [
    pytest.param(SHARED, id="one-card"),
    pytest.param(
        SPLIT, id="two-cards", marks=pytest.mark.skipif(CARDS < 2, reason="needs two cards")
    ),
]
FREE_MIB = 1500
"""A card with less in use is free: CUDA contexts of other processes need a few hundred MiB."""
KILL_IN_SYNC = Path(__file__).parent / "support" / "kill_in_sync.py"

Start = Callable[..., Command]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts `rlsys train` on GPUs; nothing of it outlives the test."""
    commands: list[Command] = []
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(CONFIG))

    def start_one(share: float, *overrides: str, program: tuple[str, ...] = ()) -> Command:
        settings = (
            *ON_GPUS,
            f"learner.gpus_per_rank={share}",
            f"generation.gpus_per_engine={share}",
            *overrides,
        )
        run_dir = tmp_path / "run"
        commands.append(Command(run_dir, "train", path, *settings, program=program))
        return commands[-1]

    yield start_one
    for command in commands:
        command.kill_all()


def goes_on(command: Command) -> None:
    """An engine was killed; it serves again, and the run ends with every step, each made once."""
    assert command.wait(400) == 0, command.output
    assert command.all_gone(30), command.left()
    assert "engine 0 serves again with the weights of version" in command.output
    assert [row["step"] for row in command.steps()] == list(range(1, CONFIG["steps"] + 1))
    last = command.steps()[-1]
    assert last["engines/alive"] == 1
    assert last["engines/restarts"] == 1
    # bfloat16; None where the only engine was lost in the sync
    assert all((row["gap/canary"] or 0.0) < 0.1 for row in command.steps())


@pytest.mark.parametrize("share", LAYOUTS)
def test_an_engine_killed_in_a_step(start: Start, share: float) -> None:
    command = start(share)
    command.wait_for_step(3)
    (actor,) = command.find("GenerationActor")
    vllm = started_processes(actor)
    assert vllm
    for process in vllm:
        process.kill()
    goes_on(command)


@pytest.mark.parametrize("share", LAYOUTS)
def test_an_engine_killed_in_a_sync(start: Start, share: float) -> None:
    program = (str(KILL_IN_SYNC), "4", "1.0")
    command = start(share, "sync.bucket_mib=1", "sync.deadline_s=30", program=program)
    goes_on(command)
    assert "1 engines killed in sync 4" in command.output


@pytest.mark.parametrize("share", LAYOUTS)
def test_the_driver_killed(start: Start, share: float) -> None:
    used = most_used_mib()
    assert used < FREE_MIB, "other processes use the card"
    command = start(share)
    command.wait_for_step(3)
    assert most_used_mib() > used + FREE_MIB
    command.driver.kill()
    assert wait_until(lambda: most_used_mib() < FREE_MIB, 30), command.left()
    assert command.all_gone(30), command.left()


def most_used_mib() -> int:
    """Memory in use on the fullest card."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    listed = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    return max(map(int, listed.split()))
