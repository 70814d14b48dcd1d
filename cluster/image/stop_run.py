"""preStop hook of the pods: a run writes its checkpoint before Kubernetes ends the pod.

    python stop_run.py head 840       stop the driver, and wait at most 840 s for its end
    python stop_run.py worker 840     wait at most 840 s until no process of a run is left here

KubeRay deletes the pods of a suspended, retried or deleted RayJob at the same time, and does not
stop the Ray job before. Without a hook on the workers, they would end during the step that the
driver still finishes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import psutil

RUN_MARK = "RLSYS_RUN"
"""Environment variable of every process that Ray starts for a run (rlsys.launch.worker)."""


def main() -> None:
    """Carry out the hook of one pod."""
    role, seconds = sys.argv[1], float(sys.argv[2])
    match role:
        case "head":
            # A signal and not `ray job stop`: the driver exits with 130, Ray reports FAILED, and
            # KubeRay starts the job again. It takes the status STOPPED for a finished job.
            for driver in drivers():
                with suppress(psutil.NoSuchProcess):
                    driver.terminate()
            wait_for_end(drivers, seconds)
        case "worker":
            announce_end(seconds)
            wait_for_end(run_processes, seconds)
        case _:
            sys.exit(f"stop_run.py: the role is {role!r}; use head or worker")


def drivers() -> Iterator[psutil.Process]:
    """Yield the `rlsys` commands on this node; they are drivers of runs."""
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []  # None for a process of another user
        if "rlsys" in map(os.path.basename, words[:2]) and process.pid != os.getpid():
            yield process


def run_processes() -> Iterator[psutil.Process]:
    """Yield the processes on this node that Ray started for a run."""
    for process in psutil.process_iter(["environ"]):
        if RUN_MARK in (process.info["environ"] or {}):
            yield process


def announce_end(seconds: float) -> None:
    """Tell Ray that this node ends, so that it starts nothing new here.

    The command is not part of Ray's stable interface. If it fails, only this notice is missing.
    """
    reason = ["--reason=DRAIN_NODE_REASON_PREEMPTION", "--reason-message=the pod is deleted"]
    deadline = f"--deadline-remaining-seconds={int(seconds)}"
    subprocess.run(["ray", "drain-node", *reason, deadline], check=False, timeout=60)


def wait_for_end(processes: Callable[[], Iterator[psutil.Process]], seconds: float) -> None:
    """Return when `processes` finds none, or after this many seconds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(alive(p) for p in processes()):
        time.sleep(1)


def alive(process: psutil.Process) -> bool:
    """Return whether the process still runs. One that nobody has waited for counts as ended."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


if __name__ == "__main__":
    main()
