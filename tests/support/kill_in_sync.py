"""`rlsys` with every process of vLLM killed in the middle of a weight sync.

    python kill_in_sync.py SYNC SECONDS train CONFIG.yaml ...

SYNC counts from 1. The processes stop when they are told to receive the weights, so that the
weights stay on their way, and are killed SECONDS later.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import psutil
from commands import started_processes

from actors.sink import EngineSink
from rlsys.cli import main
from rlsys.launch.worker import RUN_MARK
from rlsys.training.stacks import run_processes

RECEIVE = EngineSink.receive


def kill_in_sync(sync: int, seconds: float) -> None:
    """Replace EngineSink.receive by one that kills."""
    begun = 0

    async def receive(self: EngineSink, buckets: Sequence[Any], sent: Sequence[Any]) -> None:
        nonlocal begun
        begun += 1
        engines = _engines() if begun == sync else []
        for process in engines:
            process.suspend()
        receiving = asyncio.ensure_future(RECEIVE(self, buckets, sent))
        if engines:
            await asyncio.sleep(seconds)
            print(f"{len(engines)} engines killed in sync {sync}", flush=True)
        for process in engines:
            process.kill()
        await receiving

    EngineSink.receive = receive  # type: ignore[method-assign]


def _engines() -> list[psutil.Process]:
    """The processes that vLLM started in the actors of this run."""
    found: list[psutil.Process] = []
    for process in run_processes(RUN_MARK, str(os.getpid())):
        with suppress(psutil.Error):  # it has ended
            if "GenerationActor" in "".join(process.cmdline()[:1]):
                found += started_processes(process)
    return found


if __name__ == "__main__":
    kill_in_sync(int(sys.argv[1]), float(sys.argv[2]))
    sys.argv[1:3] = []
    main()
