"""Real disks for tests: small ones, full ones, and ones that cannot be written any more."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

BALLAST = "ballast"


@contextmanager
def disk(path: Path, size: str) -> Iterator[Path]:
    """A disk in memory at `path`; the test is skipped where this user may not mount one."""
    path.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("this user may not mount a disk")
    try:
        yield path
    finally:
        # Lazily: an error that a test still holds may keep a file open that could not be written.
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def make_read_only(disk: Path, *, read_only: bool = True) -> None:
    """Refuse all writing, root's included, as a file system does after an error."""
    option = "ro" if read_only else "rw"
    subprocess.run(["mount", "-o", f"remount,{option}", str(disk)], check=True)


def fill(disk: Path) -> None:
    """Leave no byte free."""
    with (disk / BALLAST).open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 16))
        except OSError:
            pass


def make_room(disk: Path) -> None:
    """Undo `fill`."""
    (disk / BALLAST).unlink()
