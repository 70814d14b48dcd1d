"""Two runs never share a run directory, and a dead run does not keep it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest

from rlsys.errors import RunFolderError
from rlsys.training import run_lock as module
from rlsys.training.run_lock import LOCK, Owner, run_lock

HOLD = """
import sys
from pathlib import Path
from rlsys.training.run_lock import run_lock
with run_lock(Path(sys.argv[1]), print):
    print("held", flush=True)
    sys.stdin.read()
"""


def hold(folder: Path) -> subprocess.Popen[str]:
    """A process that holds the folder until its stdin is closed."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def take(folder: Path) -> list[str]:
    """Hold the folder for a moment; return what the user was told."""
    told: list[str] = []
    with run_lock(folder, told.append):
        assert (folder / LOCK).exists()
    return told


def left_lock(folder: Path, **changes: object) -> Path:
    """The lock file of a run on another machine, with `changes`."""
    owner = Owner("node-7", 4242, "another machine", "99", "token")
    folder.mkdir(exist_ok=True)
    path = folder / LOCK
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(owner, **changes)))
    return path


def test_a_second_process_is_refused_until_the_first_one_ends(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "one"
    first = hold(folder)
    words = f"in use by the run of process {first.pid} on host {socket.gethostname()}"
    with pytest.raises(RunFolderError, match=words):
        take(folder)
    first.communicate("")
    assert first.returncode == 0
    assert not folder.exists()  # nothing was written into it
    assert take(folder) == []


def test_a_killed_run_holds_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    for number in (signal.SIGKILL, signal.SIGTERM):
        process = hold(folder)
        process.send_signal(number)
        # Not waited for: it stays in the table of processes, as under a parent that never asks.
        while module._started(process.pid) is not None:
            time.sleep(0.01)
        assert (folder / LOCK).exists()
        assert take(folder) == []
        process.communicate()


def test_a_failed_run_holds_nothing(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), run_lock(tmp_path, print):
        raise ZeroDivisionError
    assert not (tmp_path / LOCK).exists()


def test_another_process_with_the_same_number_is_not_the_run(tmp_path: Path) -> None:
    left_lock(tmp_path, pid=os.getpid(), machine=module._machine(), started="1")
    assert take(tmp_path) == []


def test_a_lock_of_another_machine_is_judged_by_its_signs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SILENT_SECONDS", 0.5)
    path = left_lock(tmp_path)
    os.utime(path, (1, 1))  # the clocks of two machines may differ by years
    (sentence,) = take(tmp_path)
    assert "left by the run of process 4242 on host node-7; waiting up to 0.5 s" in sentence

    path = left_lock(tmp_path)
    ended = threading.Event()
    owner = module._read(path)
    assert owner is not None
    monkeypatch.setattr(module, "SIGN_SECONDS", 0.05)
    signs = threading.Thread(target=module._give_signs, args=(path, owner, ended))
    signs.start()
    try:
        with pytest.raises(RunFolderError, match="process 4242 on host node-7"):
            take(tmp_path)
    finally:
        ended.set()
        signs.join()
    assert module._read(path) == owner


def test_a_torn_lock_is_one_of_a_dead_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SILENT_SECONDS", 0.2)
    for torn in (b"", b'{"host": "n', b"\xff"):
        left_lock(tmp_path).write_bytes(torn)
        assert len(take(tmp_path)) == 1


def test_of_many_that_find_a_dead_lock_one_gets_it(tmp_path: Path) -> None:
    folder = tmp_path
    (folder / "checkpoints").mkdir()  # a folder that is empty would go with the lock
    for _ in range(3):
        left_lock(folder, pid=2**22 + 1, machine=module._machine())
        barrier = threading.Barrier(8)
        results: list[str] = []

        def run(barrier: threading.Barrier = barrier, results: list[str] = results) -> None:
            barrier.wait()
            try:
                with run_lock(folder, print):
                    results.append("held")
                    deadline = time.monotonic() + 20
                    while len(results) < 8 and time.monotonic() < deadline:
                        time.sleep(0.01)
            except RunFolderError:
                results.append("refused")

        threads = [threading.Thread(target=run) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(results) == ["held", *["refused"] * 7]
        assert list(folder.iterdir()) == [folder / "checkpoints"]
