"""Which processes of a run do not answer, and what they do: for a run that makes no progress."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rlsys.launch.worker import RUN_MARK
from rlsys.training.stacks import run_processes, write_stacks

if TYPE_CHECKING:
    from ray.actor import ActorHandle

ANSWER_SECONDS: Final = 10.0
"""How long an actor may take to say that it is there."""
STACKS: Final = "stacks"


async def investigate(actors: Mapping[str, ActorHandle], run_dir: Path, waits: str) -> list[str]:
    """Ask every actor for a sign of life and write the stacks of all processes of this machine.

    Args:
        actors: by name, for instance "engine 0".
        run_dir: gets the folder stacks; `waiting.txt` in it says who waits for what.
        waits: what the driver waits for.

    Returns:
        A sentence about every process that is stopped or does not answer. An actor that runs one
        call at a time, such as a learner rank, does not answer while it works.
    """
    answers = await asyncio.gather(*map(_answers, actors.values()))
    silent = [f"{name} does not answer" for name, ok in zip(actors, answers, strict=True) if not ok]
    folder = run_dir / STACKS
    processes = list(run_processes(RUN_MARK, str(os.getpid())))
    stopped = await asyncio.to_thread(write_stacks, processes, folder)
    lines = [waits, *silent, *stopped]
    text = "".join(f"{line}\n" for line in lines)
    with suppress(OSError):  # a full disk must not hide what is known
        (folder / "waiting.txt").write_text(text, encoding="utf-8")
    return silent + stopped


async def _answers(actor: ActorHandle) -> bool:
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            await actor.__ray_ready__.remote()
    except Exception:  # a time-out, or one of the many errors of a dead process
        return False
    return True
