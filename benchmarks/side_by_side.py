"""Training runs side by side on one machine: started, watched, and stopped in time.

Every run is an `rlsys train` process with a local Ray of its own, so no run knows of the others.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from rlsys.launch.attempts import STOPPED

State = Literal["finished", "failed", "stopped"]
GRACE_S: Final = 60.0
"""How long a run may take to save its checkpoint when it is stopped."""
POLL_S: Final = 0.2


@dataclass(frozen=True, eq=False)
class Job:
    """One run: its name, its directory, beside which its log is, and its command."""

    name: str
    run_dir: Path
    command: Sequence[str]

    @property
    def log(self) -> Path:
        """File with everything that the run prints."""
        return Path(f"{self.run_dir}.log")


def carry_out(
    jobs: Sequence[Job],
    parallel: int,
    *,
    seconds: float | None = None,
    starts: Callable[[Job], None],
    ended: Callable[[Job, State], None],
) -> Counter[State]:
    """Run all jobs, `parallel` at a time, in their order; a run that fails does not stop the rest.

    When only GRACE_S of `seconds` is left, and after Ctrl-C or SIGTERM, no further job starts and
    the running ones are asked to save a checkpoint and to end. One that still runs GRACE_S later is
    killed.

    Args:
        starts: called before a job is started.
        ended: called after every job that was started.

    Returns:
        How many jobs finished, failed and were stopped, including those that were never started.
    """
    waiting, counts = deque(jobs), Counter[State]()
    running: dict[Job, subprocess.Popen[bytes]] = {}
    stop_at = math.inf if seconds is None else time.monotonic() + max(seconds - GRACE_S, 0.0)
    kill_at = math.inf
    with _signals_recorded() as received:
        try:
            while waiting or running:
                now = time.monotonic()
                if kill_at == math.inf and (received or now >= stop_at):
                    kill_at = now + GRACE_S
                    counts["stopped"] += len(waiting)
                    waiting.clear()
                    _signal(running.values(), signal.SIGTERM)
                elif now >= kill_at:
                    _signal(running.values(), signal.SIGKILL)
                while waiting and len(running) < parallel:
                    job = waiting.popleft()
                    starts(job)
                    running[job] = _start(job)
                for job in [job for job in running if running[job].poll() is not None]:
                    state = _state(running.pop(job).returncode, stopped=kill_at < math.inf)
                    counts[state] += 1
                    ended(job, state)
                time.sleep(POLL_S)
        finally:  # an error of this process leaves no run behind
            _signal(running.values(), signal.SIGTERM)
    return counts


def _signal(processes: Iterable[subprocess.Popen[bytes]], number: int) -> None:
    """Send a signal to the drivers, which take their own processes down."""
    for process in processes:
        process.send_signal(number)


def _state(code: int, *, stopped: bool) -> State:
    if code == 0:
        return "finished"
    # A run that was still loading its libraries has no handler yet and ends by the signal itself.
    asked = (STOPPED, -signal.SIGTERM, -signal.SIGKILL)
    return "stopped" if stopped and code in asked else "failed"


def _start(job: Job) -> subprocess.Popen[bytes]:
    job.run_dir.parent.mkdir(parents=True, exist_ok=True)
    # Threads that spin and workers of low priority slow tiny runs that share their cores.
    defaults = {"OMP_NUM_THREADS": "1", "RAY_worker_niceness": "0"}
    with job.log.open("ab") as log:
        # A session of its own: Ctrl-C reaches this process alone, which then stops the runs.
        return subprocess.Popen(
            job.command,
            env=defaults | os.environ,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


@contextmanager
def _signals_recorded() -> Iterator[list[int]]:
    """Collect the numbers of SIGINT and SIGTERM in a list for the time of the block."""
    received: list[int] = []
    before = {
        number: signal.signal(number, lambda got, _frame: received.append(got))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
