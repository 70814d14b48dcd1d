"""Files that are complete after a power cut, and the sentence for a full disk.

A rename is atomic, but a file system may write the new name to the disk before the contents of the
file. So every file is flushed first, then its folder, and only then it is renamed.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from rlsys.errors import DiskError, RlsysError

FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
FULL_TEXTS: Final = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))
"""An error of another process arrives as text, without its number."""
UNFLUSHABLE: Final = frozenset({errno.EINVAL, errno.ENOTSUP})
"""What some network file systems return for fsync of a folder; there is nothing to wait for."""


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Turn a file system's error in the block into one sentence that names `path`: a DiskError.

    The system's own error has no name where it is not raised by opening a file.
    """
    try:
        yield
    except RlsysError:
        raise
    except Exception as error:
        remedy = "give the same command again to go on from the last checkpoint"
        if disk_full(error):
            raise DiskError(
                f"the disk is full, so {path} was not written; free some space and {remedy}"
            ) from error
        if isinstance(error, OSError):
            raise DiskError(
                f"{path} cannot be written ({error.strerror or error}); make it writable and "
                f"{remedy}"
            ) from error
        raise


def replace_file(path: Path, text: str) -> None:
    """Write `path` in one piece: after a kill or a power cut it holds the old text or the new.

    Raises DiskError.
    """
    aside = path.with_name(f"{path.name}.tmp")
    with naming(path):
        try:
            with aside.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(aside, path)
        except OSError:
            with suppress(OSError):
                aside.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def sync_tree(folder: Path) -> None:
    """Flush every file and folder below `folder`, and `folder` itself, to the disk."""
    for path in (*folder.rglob("*"), folder):
        if path.is_dir():
            sync_folder(path)
        else:
            with path.open("rb") as file:
                os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Flush the names in `folder` to the disk: without this, a rename may be undone."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in UNFLUSHABLE:
            raise
    finally:
        os.close(handle)


def disk_full(error: BaseException) -> bool:
    """Return whether a full disk or a used-up quota is the cause of `error`, or of its causes."""
    return any(
        getattr(cause, "errno", None) in FULL or any(text in str(cause) for text in FULL_TEXTS)
        for cause in _causes(error)
    )


def missing_bytes(folder: Path, wanted: int) -> int:
    """Return how many of `wanted` bytes do not fit on the disk of `folder`; 0 if all fit."""
    return max(wanted - shutil.disk_usage(folder).free, 0)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error, what it was raised from, and the members of groups; Ray keeps one in `cause`."""
    waiting, seen = [error], set[int]()
    while waiting:
        current = waiting.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        found = [current.__cause__, current.__context__, getattr(current, "cause", None)]
        if isinstance(current, BaseExceptionGroup):
            found += current.exceptions
        waiting += [cause for cause in found if isinstance(cause, BaseException)]
