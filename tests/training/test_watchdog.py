"""The watchdog: what counts as progress, and what a run that stalls ends with."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from rlsys.errors import StalledError
from rlsys.training.stacks import run_processes, write_stacks
from rlsys.training.watchdog import Progress, watch

MARK, VALUE = "RLSYS_TEST_RUN", f"watchdog-{os.getpid()}"


async def nobody(waits: str) -> Sequence[str]:
    return []


def test_a_run_that_moves_is_left_alone() -> None:
    async def main() -> None:
        progress = Progress()
        watching = asyncio.create_task(watch(progress, 0.2, nobody))
        for _ in range(10):
            await asyncio.sleep(0.05)
            progress.moved()
        assert not watching.done()
        watching.cancel()

    asyncio.run(main())


def test_a_run_that_was_suspended_has_not_stalled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlsys.training.watchdog.TICK_S", 0.02)
    monkeypatch.setattr("rlsys.training.watchdog.SUSPENDED_S", 0.1)

    async def main() -> None:
        watching = asyncio.create_task(watch(Progress(), 0.3, nobody))
        await asyncio.sleep(0.05)
        time.sleep(0.6)  # blocks the event loop, as SIGSTOP does
        await asyncio.sleep(0.1)
        assert not watching.done()
        with pytest.raises(StalledError):  # from here on it counts as before
            await asyncio.wait_for(watching, 2)

    asyncio.run(main())


def test_a_run_that_moves_while_it_is_investigated_has_not_stalled() -> None:
    progress, asked = Progress(), 0

    async def investigate(waits: str) -> Sequence[str]:
        nonlocal asked
        asked += 1
        if asked == 1:
            progress.moved()
        return []

    with pytest.raises(StalledError):
        asyncio.run(watch(progress, 0.05, investigate))
    assert asked == 2


def test_a_run_that_stalls_says_who_waits_for_whom() -> None:
    told: list[str] = []

    async def investigate(waits: str) -> Sequence[str]:
        told.append(waits)
        return ["learner rank 1 does not answer", "process 7 is stopped by a signal"]

    async def main() -> None:
        progress = Progress()
        with progress.waiting_for("the evaluation after step 2"):
            pass
        with progress.waiting_for("the learner in training step 3"):
            await watch(progress, 0.05, investigate)

    with pytest.raises(StalledError) as caught:
        asyncio.run(main())
    waits = "nothing has moved for watchdog.progress_s 0.05 s; the run waits for the learner in "
    waits += "training step 3"
    assert told == [waits]
    found = "; learner rank 1 does not answer; process 7 is stopped by a signal; the stacks of"
    assert str(caught.value).startswith(waits + found)


def test_what_can_be_started_again_is_given_up() -> None:
    """The second stall finds nothing more to give up."""
    log: list[str] = []
    calls = ["step"]

    async def investigate(waits: str) -> Sequence[str]:
        log.append("stacks")
        return ["learner rank 0 does not answer"]

    def give_up(why: str) -> bool:
        log.append(why)
        return bool(calls) and bool(calls.pop())

    async def main() -> None:
        progress = Progress(give_up=give_up)
        with progress.waiting_for("the learner in training step 3"):
            await watch(progress, 0.05, investigate)

    with pytest.raises(StalledError, match="learner rank 0 does not answer"):
        asyncio.run(main())
    assert log[::2] == ["stacks", "stacks"]
    assert "training step 3; learner rank 0 does not answer; the stacks" in log[1]


@pytest.fixture
def processes() -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """One process that sleeps, one that is stopped, and one without a handler for SIGUSR1."""
    worker = "from rlsys.launch.worker import prepare_worker as p; p()\ndef waits_here():\n"
    worker += " import time; print(flush=True); time.sleep(60)\nwaits_here()"
    plain = "import time; print(flush=True); time.sleep(60)"
    started = {
        name: subprocess.Popen(
            [sys.executable, "-c", code], env=os.environ | {MARK: VALUE}, stdout=subprocess.PIPE
        )
        for name, code in {"sleeps": worker, "stopped": worker, "plain": plain}.items()
    }
    for process in started.values():
        assert process.stdout is not None
        process.stdout.readline()
    started["stopped"].send_signal(signal.SIGSTOP)
    yield started
    for process in started.values():
        process.kill()
        process.wait()


@pytest.mark.skipif(sys.platform != "linux", reason="files in memory are Linux's")
def test_stacks_of_processes(
    processes: dict[str, subprocess.Popen[bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlsys.training.stacks.shutil.which", lambda name: None)
    found = list(run_processes(MARK, VALUE))
    assert {p.pid for p in found} == {p.pid for p in processes.values()}
    (sentence,) = write_stacks(found, tmp_path / "stacks")
    assert sentence.startswith(f"process {processes['stopped'].pid} (python")
    texts = {
        name: next((tmp_path / "stacks").glob(f"*-{process.pid}.txt")).read_text()
        for name, process in processes.items()
    }
    assert "waits_here" in texts["sleeps"]
    assert "state: stopped\n\nno stack" in texts["stopped"]
    assert "no stack" in texts["plain"]
    assert psutil.pid_exists(processes["plain"].pid)
    assert processes["plain"].poll() is None  # SIGUSR1 would have ended it
