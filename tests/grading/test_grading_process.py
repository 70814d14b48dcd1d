"""The killable process: limits in time and memory, death and rebirth."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rlsys.errors import RlsysError
from rlsys.grading import worker
from rlsys.grading.process import GradingProcess
from rlsys.types import Verdict

ENDLESS = r"\sum_{k=1}^{10^9} k^k"


def test_a_slow_comparison_is_killed_and_the_next_one_works() -> None:
    process = GradingProcess(timeout_s=1.0)
    assert process.compare("x+1", "1+x") is Verdict.RIGHT
    start = time.monotonic()
    assert process.compare(ENDLESS, "5") is Verdict.INVALID
    assert 1.0 <= time.monotonic() - start < 2.0
    assert (process.timeouts, process.restarts) == (1, 1)
    assert process.compare("x+2", "1+x") is Verdict.WRONG
    process.close()


def test_death_while_idle_is_repaired() -> None:
    process = GradingProcess(timeout_s=5.0)
    assert process.compare("x+1", "1+x") is Verdict.RIGHT
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    time.sleep(0.2)
    assert process.compare("x+1", "1+x") is Verdict.RIGHT
    assert (process.timeouts, process.restarts) == (0, 1)
    process.close()


def test_death_during_a_comparison_costs_no_verdict() -> None:
    process = GradingProcess(timeout_s=5.0)
    process.start()
    first = process.pid
    assert first is not None
    assert process.compare("x+1", "1+x") is Verdict.RIGHT
    # Stopped, it takes the question and cannot answer before it is killed.
    os.kill(first, signal.SIGSTOP)
    threading.Timer(0.3, os.kill, (first, signal.SIGKILL)).start()
    assert process.compare("x+2", "2+x") is Verdict.RIGHT
    assert process.pid != first
    assert (process.timeouts, process.restarts) == (0, 1)
    process.close()


def test_a_process_that_is_stopped_costs_no_verdict() -> None:
    process = GradingProcess(timeout_s=1.0)
    assert process.compare("x+1", "1+x") is Verdict.RIGHT
    assert process.pid is not None
    os.kill(process.pid, signal.SIGSTOP)
    assert process.compare("x+2", "2+x") is Verdict.RIGHT
    assert (process.timeouts, process.restarts) == (1, 1)
    process.close()


def test_death_while_starting_is_tried_again_with_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    process = GradingProcess(timeout_s=5.0)
    process.start()
    assert process.pid is not None
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    assert process.compare("x+1", "1+x") is Verdict.RIGHT
    assert process.restarts == 1
    process.close()

    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RlsysError, match="ended 3 times while it started"):
        process.compare("x+1", "1+x")


def test_a_process_at_its_memory_limit_is_replaced() -> None:
    process = GradingProcess(timeout_s=20.0, memory_mib=100)
    assert process.compare("x+1", "1+x") is Verdict.RIGHT
    assert process.compare(r"\prod_{k=1}^{2000} (k!)", "5x") is Verdict.INVALID
    assert (process.timeouts, process.restarts) == (0, 2)  # it was tried again once
    assert [process.compare("x+1", "1+x") for _ in range(3)] == [Verdict.RIGHT] * 3
    process.close()


def test_out_of_memory_is_repeated_in_a_fresh_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first process says that it is full, the second one answers."""
    process = GradingProcess(timeout_s=5.0)
    replies = iter([worker.OUT_OF_MEMORY, worker.RIGHT, worker.OUT_OF_MEMORY, worker.OUT_OF_MEMORY])
    monkeypatch.setattr(process, "_ask", lambda question: next(replies))
    monkeypatch.setattr(process, "start", lambda: None)
    assert process.compare("x", "x") is Verdict.RIGHT
    assert process.compare("x", "x") is Verdict.INVALID
    assert (process.timeouts, process.restarts) == (0, 3)


def test_memory_is_limited_by_the_kernel() -> None:
    process = GradingProcess(timeout_s=5.0, memory_mib=512)
    assert process.compare("x+1", "1+x") is Verdict.RIGHT
    limits = Path(f"/proc/{process.pid}/limits").read_text().splitlines()
    (address_space,) = (line for line in limits if line.startswith("Max address space"))
    assert str(512 << 20) in address_space
    process.close()


def test_the_process_ends_when_its_parent_is_killed_in_the_middle_of_a_comparison() -> None:
    script = (
        "from rlsys.grading.process import GradingProcess\n"
        "process = GradingProcess(timeout_s=1.0)\n"
        "process.compare('x+1', '1+x')\n"
        "print(process.pid, flush=True)\n"
        f"process.compare({ENDLESS!r}, '5')\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    time.sleep(0.3)
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 10
    while _is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _is_running(pid)


def _is_running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_the_worker_imports_no_heavy_library() -> None:
    script = (
        "import sys, rlsys.grading.worker as worker\n"
        "assert worker.compare('rlsys', 'x+1', ['1+x']) == worker.RIGHT\n"
        "print(sorted({'torch', 'ray', 'transformers', 'pydantic'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip().endswith("[]")


def test_an_error_inside_is_invalid(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **options: object) -> bool:
        raise ZeroDivisionError

    monkeypatch.setattr("math_verify.verify", fail)
    assert worker.compare("math-verify", "x", ["y"]) == worker.INVALID


def test_a_parent_that_left_before_the_worker_was_ready_prints_nothing() -> None:
    worker = subprocess.Popen(
        [sys.executable, "-m", "rlsys.grading.worker", "1", "4096"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert worker.stdout is not None and worker.stderr is not None
    worker.stdout.close()
    assert worker.stderr.read() == b""
    assert worker.wait() == -signal.SIGPIPE
