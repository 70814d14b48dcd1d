"""Starts `rlsys` as a user does and watches it from outside: its files and its processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from rlsys.reporting.metrics_file import METRICS, read_rows

MARK = "RLSYS_TEST_MARK"
"""Environment variable that every process of a command inherits."""
LOOPBACK = {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
START_SECONDS = 300.0
"""How long a command may take to its first step on a busy machine."""


class Command:
    """One `rlsys` command in a process of its own."""

    def __init__(
        self,
        run_dir: Path,
        *words: object,
        variables: Mapping[str, str] | None = None,
        program: Sequence[str] = (),
    ) -> None:
        """Start `rlsys` with `words`, and with `variables` in its environment.

        `program` is a Python script with arguments that runs in the place of `rlsys`.
        """
        self.run_dir = run_dir
        self._mark = uuid.uuid4().hex
        run_dir.parent.mkdir(parents=True, exist_ok=True)
        self._output = run_dir.with_name(f"{run_dir.name}-{words[0]}-{self._mark}.log")
        with self._output.open("w") as output:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, *(program or ("-m", "rlsys"))),
                    *(*map(str, words), f"run_dir={run_dir}"),
                ],
                env=os.environ | {MARK: self._mark} | dict(variables or {}),
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def driver(self) -> psutil.Process:
        """The process that was started."""
        return psutil.Process(self._process.pid)

    @property
    def ended(self) -> int | None:
        """Its exit code, None while it runs."""
        return self._process.poll()

    @property
    def output(self) -> str:
        """What it has printed so far."""
        return self._output.read_text()

    def steps(self) -> list[dict[str, Any]]:
        """The rows of training steps in metrics.jsonl."""
        return [row for row in read_rows(self.run_dir / METRICS) if "loss" in row]

    def wait_for_step(self, step: int) -> None:
        """Return once training step `step` is recorded."""

        def done() -> bool:
            assert self._process.poll() is None, self.output
            return any(row["step"] >= step for row in self.steps())

        assert wait_until(done, START_SECONDS), self.output

    def signal(self, number: int) -> None:
        """Send a signal to the driver alone."""
        self._process.send_signal(number)

    def signal_group(self, number: int) -> None:
        """Send a signal to the whole process group, as Ctrl-C and `timeout` do."""
        os.killpg(self._process.pid, number)

    def wait_for(self, text: str) -> None:
        """Return once it has printed `text`."""

        def done() -> bool:
            assert self._process.poll() is None or text in self.output, self.output
            return text in self.output

        assert wait_until(done, START_SECONDS), self.output

    def wait(self, seconds: float = START_SECONDS) -> int:
        """Return the exit code of the driver; one that hangs longer fails the test."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still runs after {seconds:g} s:\n{self.output}") from None

    def processes(self) -> list[psutil.Process]:
        """Everything alive that the command started, itself included."""
        return [process for process in psutil.process_iter() if self._is_ours(process)]

    def find(self, title: str) -> list[psutil.Process]:
        """Those of its processes that call themselves something with `title` in it."""
        found = []
        for process in self.processes():
            with suppress(psutil.Error):
                if title in "".join(process.cmdline()[:1]):
                    found.append(process)
        return found

    def listens(self) -> set[str]:
        """Where its processes listen that is not the loopback address, as "title address"."""
        found = set()
        for process in self.processes():
            with suppress(psutil.Error):
                title = " ".join(process.cmdline())[:60]
                for socket in process.net_connections("tcp"):
                    if socket.status == psutil.CONN_LISTEN and socket.laddr.ip not in LOOPBACK:
                        found.add(f"{title} {socket.laddr.ip}")
        return found

    def left(self) -> list[str]:
        """What runs in its processes, for the message of a failure."""
        lines = []
        for process in self.processes():
            with suppress(psutil.Error):
                line = " ".join(process.cmdline())[:300]
                lines.append(f"{process.pid} of {process.ppid()}: {line}")
        return lines

    def all_gone(self, seconds: float) -> bool:
        """True once no process of the command is left, False if some outlive the time."""
        return wait_until(lambda: not self.processes(), seconds)

    def kill_all(self) -> None:
        """Leave nothing behind, whatever happened."""
        for process in self.processes():
            process.kill()
        self._process.wait()

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            alive = process.status() != psutil.STATUS_ZOMBIE
            return bool(alive and process.environ().get(MARK) == self._mark)
        except psutil.Error:  # it has ended, or belongs to somebody else
            return False


def started_processes(actor: psutil.Process) -> list[psutil.Process]:
    """The processes that an actor has started for its work, those of vLLM for instance."""
    started = actor.children()
    return [p for p in started if "resource_tracker" not in "".join(p.cmdline())]


def wait_until(condition: Callable[[], bool], seconds: float, pause: float = 0.1) -> bool:
    """Poll `condition`; True as soon as it holds, False if it does not within `seconds`."""
    end = time.monotonic() + seconds
    while not (holds := condition()) and time.monotonic() < end:
        time.sleep(pause)
    return holds
