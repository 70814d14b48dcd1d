"""Training runs side by side on one machine: started, watched, and stopped in time.

Every run is an `rlsys train` process with a local Ray of its own, so no run knows of the others.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

State = Literal["finished", "failed", "stopped"]
STOPPED: Final = 130
"""Exit code of `rlsys train` after a signal; its checkpoint holds what was trained until then."""
GRACE_S: Final = 60.0
"""How long a run may take to save its checkpoint when it is stopped."""
POLL_S: Final = 0.2


class Job(NamedTuple):
    """One run. Its log is beside its directory."""

    name: str
    run_dir: Path
    words: Sequence[str]
    """Configuration file and `key.path=value` settings, without run_dir."""

    @property
    def log(self) -> Path:
        """File with everything that the run prints."""
        return Path(f"{self.run_dir}.log")

    @property
    def command(self) -> list[str]:
        """The command of the run."""
        words = ["-m", "rlsys", "train", *self.words, f"run_dir={self.run_dir}"]
        return [sys.executable, *words]


def carry_out(
    jobs: Sequence[Job],
    parallel: int,
    *,
    seconds: float | None = None,
    ended: Callable[[Job, State], None],
    command: Callable[[Job], list[str]] = lambda job: job.command,
) -> Counter[State]:
    """Run all jobs, `parallel` at a time, in their order; a run that fails does not stop the rest.

    When only GRACE_S of `seconds` is left, and after Ctrl-C or SIGTERM, no further job starts and
    the running ones are asked to save a checkpoint and to end. One that still runs GRACE_S later is
    killed.

    Args:
        ended: called after every job that was started.
        command: returns the command line of a job.

    Returns:
        How many jobs finished, failed and were stopped, including those that were never started.
    """
    began, waiting, counts = time.monotonic(), deque(jobs), Counter[State]()
    running: dict[Job, subprocess.Popen[bytes]] = {}
    stop_at = float("inf") if seconds is None else began + max(seconds - GRACE_S, 0.0)
    asked = _signals_recorded()
    stopped_at: float | None = None
    while waiting or running:
        now = time.monotonic()
        if stopped_at is None and (asked or now >= stop_at):
            stopped_at = now
            counts["stopped"] += len(waiting)
            waiting.clear()
            for process in running.values():
                process.terminate()
        if stopped_at is not None and now >= stopped_at + GRACE_S:
            for process in running.values():
                os.killpg(process.pid, signal.SIGKILL)
        while waiting and len(running) < parallel:
            job = waiting.popleft()
            running[job] = _start(job, command(job))
        for job, process in list(running.items()):
            if (code := process.poll()) is None:
                continue
            del running[job]
            state = _state(code, stopped=stopped_at is not None)
            counts[state] += 1
            ended(job, state)
        time.sleep(POLL_S)
    return counts


def _state(code: int, *, stopped: bool) -> State:
    if code == 0:
        return "finished"
    return "stopped" if stopped and code in (STOPPED, -signal.SIGKILL) else "failed"


def _start(job: Job, command: Sequence[str]) -> subprocess.Popen[bytes]:
    job.run_dir.parent.mkdir(parents=True, exist_ok=True)
    # Threads that spin and workers of low priority slow tiny runs that share their cores.
    defaults = {"OMP_NUM_THREADS": "1", "RAY_worker_niceness": "0"}
    with job.log.open("ab") as log:
        # A session of its own: Ctrl-C reaches this process alone, which then stops the runs.
        return subprocess.Popen(
            command,
            env=defaults | os.environ,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _signals_recorded() -> list[int]:
    """Return a list that receives the number of every SIGINT and SIGTERM from now on."""
    received: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda got, _frame: received.append(got))
    return received
