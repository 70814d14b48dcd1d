"""Stacks of the processes of a run on this machine, for a run that makes no progress.

Two sources: py-spy where it is installed, else the file that faulthandler writes when the process
gets SIGUSR1 (rlsys.launch.worker). A process that is stopped, or that waits inside the kernel, can
answer neither; its state is then all there is to tell.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

MEMORY_FILE: Final = "rlsys-stacks"
"""Name of the file in memory that a process writes its stacks to."""
DUMP_SECONDS: Final = 2.0
"""How long processes may take to write their stacks."""


def run_processes(mark: str, value: str) -> Iterator[psutil.Process]:
    """Yield the processes on this machine whose environment variable `mark` has this value."""
    for process in psutil.process_iter():
        try:
            if process.environ().get(mark) == value:
                yield process
        except psutil.Error:  # it ended, or belongs to another user
            continue


def write_stacks(processes: list[psutil.Process], folder: Path) -> list[str]:
    """Write NAME-PID.txt for every process; return a sentence about each that is stopped."""
    with suppress(OSError):  # a disk that is full, or folders that cannot be written any more
        folder.mkdir(parents=True, exist_ok=True)
    pyspy = shutil.which("py-spy")
    if pyspy is None:
        for process in processes:
            _ask(process.pid)
        time.sleep(DUMP_SECONDS)
    stopped = []
    for process in processes:
        try:
            name, status = _name(process), process.status()
        except psutil.Error:
            continue
        if status == psutil.STATUS_STOPPED:
            stopped.append(f"process {process.pid} ({name}) is stopped by a signal")
        text = _spied(pyspy, process.pid) if pyspy else _dumped(process.pid)
        text = text or "no stack: the process did not answer, or has no handler for SIGUSR1\n"
        header = f"process {process.pid}: {name}\nstate: {status}\n\n"
        file = folder / f"{name.replace('/', '_').replace(':', '_')}-{process.pid}.txt"
        with suppress(OSError):
            file.write_text(header + text, encoding="utf-8")
    return stopped


def _name(process: psutil.Process) -> str:
    words = process.cmdline()
    return (Path(words[0]).name if words else process.name())[:60]


def _ask(pid: int) -> None:
    """Send SIGUSR1, but only to a process with a handler: the signal would kill any other."""
    if _memory_file(pid) is not None:
        os.kill(pid, signal.SIGUSR1)


def _dumped(pid: int) -> str:
    path = _memory_file(pid)
    return "" if path is None else path.read_text(encoding="utf-8", errors="replace")


def _memory_file(pid: int) -> Path | None:
    try:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            if os.readlink(link).startswith(f"/memfd:{MEMORY_FILE}"):
                return link
    except OSError:  # the process ended meanwhile
        pass
    return None


def _spied(pyspy: str, pid: int) -> str:
    try:
        found = subprocess.run(
            [pyspy, "dump", "--nonblocking", "--pid", str(pid)],
            capture_output=True,
            text=True,
            timeout=20,
        )
    except subprocess.TimeoutExpired:
        return ""
    return found.stdout + found.stderr
