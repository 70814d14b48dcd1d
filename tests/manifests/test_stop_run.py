"""The preStop hook with real processes: it signals a driver and waits for a run's end."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from cluster.image import stop_run

HOOK = Path(stop_run.__file__)
DRIVER = """
import pathlib, signal, sys, time
def stop(*_):
    time.sleep(2)                                # finishes its step, writes a checkpoint
    pathlib.Path(sys.argv[2]).write_text("checkpoint")
    sys.exit(130)
signal.signal(signal.SIGTERM, stop)
pathlib.Path(sys.argv[2] + ".ready").touch()
time.sleep(60)
"""


@pytest.fixture
def processes() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 30
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.1)


def started(stack: ExitStack, *command: str, **variables: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(command, env=os.environ | variables)
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process


@pytest.mark.timeout(120)
def test_the_head_waits_for_the_checkpoint_of_the_driver(
    processes: ExitStack, tmp_path: Path
) -> None:
    rlsys = tmp_path / "rlsys"  # as the command is called: python .../bin/rlsys train CONFIG
    rlsys.write_text(DRIVER)
    driver = started(processes, sys.executable, str(rlsys), "train", str(tmp_path / "checkpoint"))
    wait_for(tmp_path / "checkpoint.ready")
    # Only the driver of this test: others may run on the same machine.
    found = [p for p in stop_run.drivers() if p.pid == driver.pid]
    assert len(found) == 1
    found[0].terminate()
    start = time.monotonic()
    stop_run.wait_for_end(lambda: iter([psutil.Process(driver.pid)]), 30)
    assert (tmp_path / "checkpoint").read_text() == "checkpoint"
    assert 1.5 < time.monotonic() - start < 20
    assert driver.wait() == 130


@pytest.mark.timeout(120)
def test_a_worker_waits_for_the_processes_of_a_run_but_not_forever(processes: ExitStack) -> None:
    marked = started(processes, "sleep", "60", RLSYS_RUN="4711")
    other = started(processes, "sleep", "60")
    found = {process.pid for process in stop_run.run_processes()}
    assert marked.pid in found
    assert other.pid not in found
    start = time.monotonic()
    stop_run.wait_for_end(lambda: iter([psutil.Process(marked.pid)]), 2)
    assert 2 <= time.monotonic() - start < 10
    marked.kill()
    stop_run.wait_for_end(lambda: iter([psutil.Process(marked.pid)]), 60)
    assert time.monotonic() - start < 30  # a zombie counts as ended


def test_an_unknown_role_is_refused() -> None:
    done = subprocess.run([sys.executable, HOOK, "tail", "1"], capture_output=True, text=True)
    assert (done.returncode, "use head or worker" in done.stderr) == (1, True)
