"""One run per run directory: a lock file that a dead run does not hold.

run.lock names host, process and machine of the run. It is created with O_EXCL, which is atomic on
network file systems too; flock is not. Who finds one decides whether its run still lives:

- same boot of the same machine, same process namespace: by looking for the process;
- anywhere else: by waiting for a sign. A thread of the run touches the file every few seconds. The
  file's time is only compared with itself, so clocks of different machines do not matter.
"""

from __future__ import annotations

import fcntl
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

from rlsys.errors import RunFolderError
from rlsys.training.durable import naming

LOCK: Final = "run.lock"
SIGN_SECONDS: Final = 5.0
"""Time between two signs of life."""
SILENT_SECONDS: Final = 60.0
"""A run on another machine without a sign for so long is taken for dead. Network file systems may
show a change after half of this."""

SETTLE_SECONDS: Final = 0.2
"""A lock is held if it is still there after this time."""


class Owner(msgspec.Struct, frozen=True):
    """The process that holds a lock."""

    host: str
    pid: int
    machine: str
    """Boot and process namespace: where two of them are equal, so are the processes behind pids."""
    started: str
    """When the process started, so that a later one with the same pid is not taken for it."""
    token: str
    """Random, so that a run recognises its own file."""


@contextmanager
def run_lock(run_dir: Path, tell: Callable[[str], None]) -> Iterator[None]:
    """Hold `run_dir` for the time of the block; makes it if needed, and removes it if left empty.

    `tell` takes a sentence for the user, if this has to wait for a sign of another machine.

    Raises RunFolderError if another run that lives holds it.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    path = run_dir / LOCK
    pid = os.getpid()
    own = Owner(socket.gethostname(), pid, _machine(), _started(pid) or "", uuid.uuid4().hex)
    with _alone_on_this_host(run_dir):
        while not _take(path, own):
            _remove_if_dead(path, tell)
    ended = threading.Event()
    signs = threading.Thread(target=_give_signs, args=(path, own, ended), daemon=True)
    signs.start()
    try:
        yield
    finally:
        ended.set()
        signs.join()
        # A lock that cannot be deleted, on a disk that has become read-only, is that of a dead run
        # from now on, and must not hide why this one ended.
        with suppress(OSError):
            if _read(path) == own:
                path.unlink(missing_ok=True)
        with suppress(OSError):  # something is in it, which is the normal case
            run_dir.rmdir()


@contextmanager
def _alone_on_this_host(run_dir: Path) -> Iterator[None]:
    """Let the processes of this host take the lock one after the other.

    Where the file system cannot do that, the checks of `_take` and `_remove_if_dead` remain; they
    are all that works between hosts.
    """
    handle = os.open(run_dir, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)  # which unlocks


def _take(path: Path, own: Owner) -> bool:
    """Create the lock file; False if another run has one."""
    if not _create(path, own):
        return False
    # Another process may remove this file if it read a dead lock just before; see _remove_if_dead.
    time.sleep(SETTLE_SECONDS)
    return _read(path) == own


def _create(path: Path, own: Owner) -> bool:
    with naming(path):
        try:
            handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        except FileExistsError:
            return False
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(msgspec.json.encode(own))
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            path.unlink()  # an empty lock would make the next run wait for a sign of this one
            raise
    return True


def _read(path: Path) -> Owner | None:
    """Return who holds the lock; None if there is no file, or none that can be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Owner)
    except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def _remove_if_dead(path: Path, tell: Callable[[str], None]) -> None:
    """Return once the lock of a dead run is gone; raise RunFolderError if its run lives."""
    owner = _read(path)
    if owner is not None and owner.machine == _machine():
        alive = _started(owner.pid) == owner.started
    else:
        alive = _gives_a_sign(path, owner, tell)
    if alive:
        raise RunFolderError(
            f"run_dir {str(path.parent)!r} is in use by {_words(owner)}; stop that run, or give "
            "another run_dir"
        )
    # Several processes may find the same dead lock. If the file changed since it was read, what was
    # renamed here is the new lock of another one, and it is put back. Should a third process create
    # its own in between, the other one notices that after SETTLE_SECONDS.
    aside = path.with_name(f"{LOCK}.{uuid.uuid4().hex}")
    with suppress(FileNotFoundError):
        os.rename(path, aside)
        if _read(aside) != owner:
            with suppress(FileExistsError):
                os.link(aside, path)
        aside.unlink()


def _gives_a_sign(path: Path, owner: Owner | None, tell: Callable[[str], None]) -> bool:
    """Wait until the lock's file changes (True), or until it was silent for too long (False)."""
    tell(
        f"{path} was left by {_words(owner)}; waiting up to {SILENT_SECONDS:g} s to see whether "
        "that run still lives"
    )
    first, deadline = _sign(path), time.monotonic() + SILENT_SECONDS
    while time.monotonic() < deadline:
        time.sleep(min(1.0, SILENT_SECONDS / 10))
        now = _sign(path)
        if now is None:
            return False  # the run has just ended
        if now != first:
            return True
    return False


def _give_signs(path: Path, own: Owner, ended: threading.Event) -> None:
    while not ended.wait(SIGN_SECONDS):
        # A disk that fails now and then is no reason to end a run: the next sign may succeed.
        with suppress(OSError):
            if _read(path) == own:
                os.utime(path)


def _sign(path: Path) -> int | None:
    """Time of the last sign in ns of the file system's clock."""
    # Opened, because network file systems only then ask the server for the current time of a file.
    try:
        with path.open("rb") as file:
            return os.fstat(file.fileno()).st_mtime_ns
    except FileNotFoundError:
        return None


def _machine() -> str:
    """Identify boot and process namespace: two containers of one machine do not share pids."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    return socket.gethostname()  # no Linux: the process start time is unknown as well


def _started(pid: int) -> str | None:
    """When a process started, in ticks since boot; None if there is no such process."""
    if not Path("/proc/self/stat").exists():
        return "unknown" if _exists(pid) else None
    try:
        # The second field is the name in parentheses and may contain anything.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, started = fields[0], fields[19]
    return None if state in "ZX" else started


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _words(owner: Owner | None) -> str:
    if owner is None:
        return "a run that is just starting"
    return f"the run of process {owner.pid} on host {owner.host}"
