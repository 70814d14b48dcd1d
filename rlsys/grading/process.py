"""The handle of one killable grading process: a hard wall-clock limit around computer algebra.

A plain subprocess rather than multiprocessing: no `__main__` is imported again, no pickle, and it
works in any thread, in a Ray actor and in a daemonic process.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import weakref
from contextlib import suppress

import psutil

from rlsys.errors import RlsysError
from rlsys.grading import worker
from rlsys.grading.golds import read_gold
from rlsys.types import Verdict

START_DEADLINE_S = 120.0
START_ATTEMPTS = 3
COMPARISON_ATTEMPTS = 2
MEMORY_MIB = 1024
STALLED = 0.1
"""A process that used less than this share of its time limit as CPU time did not compute."""

_VERDICTS = {
    worker.WRONG: Verdict.WRONG,
    worker.RIGHT: Verdict.RIGHT,
    worker.INVALID: Verdict.INVALID,
}


class GradingProcess:
    """Compares answers one at a time; not thread-safe. Starts on first use, ends with its owner."""

    def __init__(self, timeout_s: float, memory_mib: int = MEMORY_MIB) -> None:
        """Limit each comparison to `timeout_s` seconds and the process to `memory_mib` MiB."""
        self.timeout_s = timeout_s
        self.memory_mib = memory_mib
        self.timeouts = 0
        self.restarts = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._ready = False
        self._cpu_before_s = 0.0
        """CPU time that the process had used when it was asked last."""
        self._finalizer: weakref.finalize | None = None  # type: ignore[type-arg]

    @property
    def pid(self) -> int | None:
        """Process id, None unless started."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the process without waiting for it; `compare` waits until it is ready."""
        command = [sys.executable, "-W", "ignore", "-m", worker.__name__]
        command += [str(self.timeout_s), str(self.memory_mib)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )
        self._ready = False
        self._finalizer = weakref.finalize(self, _end, self._process)

    def compare(self, answer: str, gold: str, policy: str = "rlsys") -> Verdict:
        """Compare two answers; INVALID on an error inside or after `timeout_s` seconds.

        A process that dies or reaches its memory limit says nothing about the answer, nor does one
        that was late because something outside stopped it: the comparison is repeated once, in a
        fresh process. A second death is INVALID.

        Raises RlsysError if the process cannot be started, which no text can cause.
        """
        accepted = read_gold(gold)
        tolerance = None if accepted.tolerance is None else str(accepted.tolerance)
        return self._reply([policy, answer, accepted.answers, tolerance])

    def reads(self, gold: str) -> bool:
        """Tell whether math-verify's grammar makes something of a gold text."""
        return self._reply([worker.READS, gold, [], None]) is Verdict.RIGHT

    def _reply(self, question: list[object]) -> Verdict:
        for _ in range(COMPARISON_ATTEMPTS):
            reply = self._ask(question)
            if reply in _VERDICTS:
                return _VERDICTS[reply]
            late = reply is None
            stalled = late and self._cpu_s() - self._cpu_before_s < STALLED * self.timeout_s
            self.restarts += 1
            self.timeouts += late
            self.close()
            self.start()  # ready by the time of the next comparison
            if late and not stalled:
                break
        return Verdict.INVALID

    def close(self) -> None:
        """Kill the process, if any."""
        if self._finalizer is not None:
            self._finalizer()
        self._process = None

    def _ask(self, question: list[object]) -> bytes | None:
        process = self._running()
        self._cpu_before_s = self._cpu_s()
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # the read below finds the process dead
            process.stdin.write(json.dumps(question).encode() + b"\n")
            process.stdin.flush()
        return _read_byte(process, self.timeout_s)

    def _cpu_s(self) -> float:
        """Return the CPU time that the process has used so far, in seconds."""
        assert self.pid is not None
        with suppress(psutil.Error):  # it has ended
            used = psutil.Process(self.pid).cpu_times()
            return float(used.user + used.system)
        return 0.0

    def _running(self) -> subprocess.Popen[bytes]:
        """Return a process that is ready. One that dies while it starts is started again."""
        if self._process is not None and self._process.poll() is not None and self._ready:
            self.restarts += 1  # killed from outside while idle
            self.close()
        for _ in range(START_ATTEMPTS):
            if self._process is None:
                self.start()
            process = self._process
            assert process is not None
            if self._ready:
                return process
            first = _read_byte(process, START_DEADLINE_S)
            if first == worker.READY:
                self._ready = True
                return process
            self.restarts += 1
            self.close()
            if first is None:
                break
        command = f"{sys.executable} -m {worker.__name__} 5 {self.memory_mib}"
        late = f"did not start within {START_DEADLINE_S:.0f} s"
        died = f"ended {START_ATTEMPTS} times while it started"
        raise RlsysError(
            f"the grading process {late if first is None else died}; run `{command}` to see why"
        )


def _read_byte(process: subprocess.Popen[bytes], limit_s: float) -> bytes | None:
    """Return the next byte, b"" if the process ended, or None after `limit_s` seconds."""
    assert process.stdout is not None
    poll = select.poll()  # unlike select.select, takes file descriptors above 1023
    poll.register(process.stdout, select.POLLIN)
    if not poll.poll(limit_s * 1000):
        return None
    return os.read(process.stdout.fileno(), 1)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        with suppress(BrokenPipeError):  # a request it never read
            pipe.close()
