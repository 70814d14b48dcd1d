"""The handle of one killable grading process: a hard wall-clock limit around math-verify.

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

from rlsys.errors import RlsysError
from rlsys.grading import worker
from rlsys.types import Verdict

START_DEADLINE_S = 120.0
MEMORY_MIB = 1024

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

    def compare(self, answer: str, gold: str) -> Verdict:
        """Compare two answers; INVALID on an error, a crash or after `timeout_s` seconds.

        Raises RlsysError if the process cannot be started, which no text can cause.
        """
        process = self._running()
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # the read below finds the process dead
            process.stdin.write(json.dumps([answer, gold]).encode() + b"\n")
            process.stdin.flush()
        reply = _read_byte(process, self.timeout_s)
        if reply in _VERDICTS:
            return _VERDICTS[reply]
        self.timeouts += reply is None
        self.restarts += 1
        self.close()
        self.start()  # ready by the time of the next comparison
        return Verdict.INVALID

    def close(self) -> None:
        """Kill the process, if any."""
        if self._finalizer is not None:
            self._finalizer()
        self._process = None

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is not None and self._ready:
            self.restarts += 1  # killed from outside while idle
            self.close()
        if self._process is None:
            self.start()
        process = self._process
        assert process is not None
        if not self._ready:
            first = _read_byte(process, START_DEADLINE_S)
            if first != worker.READY:
                self.close()
                command = f"{sys.executable} -m {worker.__name__} 5 {self.memory_mib}"
                late = f"did not start within {START_DEADLINE_S:.0f} s"
                raise RlsysError(
                    f"the grading process {late if first is None else 'ended while it started'}; "
                    f"run `{command}` to see why"
                )
            self._ready = True
        return process


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
