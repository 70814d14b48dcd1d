"""The files of one checkpoint: sealed with a list of their hashes, verified before they are used.

    step-40/learner/         the learner's own files
            groups.msgpack   finished groups that were not trained yet (rlsys.training.group_codec)
            state.json       format, step, next group, and name, size and SHA-256 of all other files

Format 1 has groups.pkl instead of groups.msgpack, and no hashes. It is still read.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import file_digest
from pathlib import Path
from typing import Final

import msgspec

from rlsys.errors import CheckpointError
from rlsys.training.durable import replace_file, sync_tree
from rlsys.training.group_codec import StoredGroup, decode_groups
from rlsys.training.old_groups import decode_old_groups

FORMAT: Final = 2
FIRST_FORMAT: Final = 1
STATE: Final = "state.json"
LEARNER: Final = "learner"
GROUPS: Final = "groups.msgpack"
OLD_GROUPS: Final = "groups.pkl"
THREADS: Final = 8
"""Files that are hashed at the same time; hashing runs outside Python's lock."""


class StoredFile(msgspec.Struct, frozen=True):
    """A file as it was written."""

    name: str
    """Relative to the checkpoint's folder, with `/` on every system."""
    size: int
    """Bytes."""
    sha256: str
    """Of the whole file; `sha256sum` prints the same."""


class State(msgspec.Struct, frozen=True):
    """state.json."""

    format: int
    step: int
    files: tuple[StoredFile, ...] = ()
    """Every file but state.json; empty in format 1."""
    next_group: int | None = None
    """First group, in admission order, that no step has taken. None in checkpoints of versions that
    took the same number of groups in every step."""


class _Format(msgspec.Struct):
    format: int


class Damage(Exception):
    """A checkpoint is not what was written; the text names the file and what is wrong with it."""


def seal(folder: Path, step: int, next_group: int) -> None:
    """Hash all files below `folder`, write state.json, and flush everything to the disk."""
    state = State(FORMAT, step, tuple(_hashed(folder, _names(folder))), next_group)
    text = msgspec.json.format(msgspec.json.encode(state), indent=1).decode()
    replace_file(folder / STATE, text)
    sync_tree(folder)


def read_state(folder: Path) -> State:
    """Return the checkpoint's state.json.

    Raises:
        Damage: it is missing or not readable.
        CheckpointError: a newer version of rlsys wrote it.
    """
    try:
        text = (folder / STATE).read_bytes()
        version = msgspec.json.decode(text, type=_Format).format
        if version > FORMAT:
            raise CheckpointError(
                f"checkpoint {folder} has format {version}, this version of rlsys reads "
                f"{FIRST_FORMAT} to {FORMAT}; resume with the version that wrote it, or give "
                "another run_dir for a new run"
            )
        state = msgspec.json.decode(text, type=State)
    except FileNotFoundError:
        raise Damage(f"{STATE} is missing") from None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Damage(f"{STATE} is not readable: {error}") from error
    if folder.name != f"step-{state.step}" or state.format < FIRST_FORMAT:
        raise Damage(f"{STATE} holds step {state.step} and format {state.format}")
    return state


def check_sizes(folder: Path) -> State:
    """Raise Damage if a file is missing or has the wrong size; cheap, it reads no file."""
    state = read_state(folder)
    for stored in state.files:
        try:
            size = os.stat(folder / stored.name).st_size
        except OSError as error:
            raise Damage(f"{stored.name} is missing ({error.strerror})") from error
        if size != stored.size:
            raise Damage(f"{stored.name} has {size:,} bytes instead of {stored.size:,}")
    return state


def verify(folder: Path) -> State:
    """Return the checkpoint's state if all its files are as they were written.

    Raises:
        Damage: one of them is not.
        CheckpointError: a newer version of rlsys wrote the checkpoint.
    """
    state = check_sizes(folder)
    if state.format == FIRST_FORMAT:
        _verify_old(folder)
        return state
    listed = {stored.name: stored for stored in state.files}
    # DeepSpeed looks for files by pattern, so a file too many can change what it loads.
    for name in _names(folder):
        if name.startswith(f"{LEARNER}/") and name not in listed:
            raise Damage(f"{name} was not written with this checkpoint")
    if GROUPS not in listed:
        raise Damage(f"{STATE} does not list {GROUPS}")
    try:
        for found in _hashed(folder, list(listed)):
            if found.sha256 != listed[found.name].sha256:
                raise Damage(f"{found.name} has changed: its SHA-256 is not that in {STATE}")
    except OSError as error:
        raise Damage(f"a file is not readable: {error}") from error
    return state


def read_groups(folder: Path) -> list[StoredGroup]:
    """Return the finished groups of the checkpoint in `folder`.

    Raises CheckpointError if the file holds anything else.
    """
    if read_state(folder).format == FIRST_FORMAT:
        return decode_old_groups((folder / OLD_GROUPS).read_bytes())
    return decode_groups((folder / GROUPS).read_bytes())


def _verify_old(folder: Path) -> None:
    """Format 1 has no hashes, but torch's files are zip archives with checksums of their own."""
    try:
        decode_old_groups((folder / OLD_GROUPS).read_bytes())
    except (OSError, CheckpointError) as error:
        raise Damage(f"{OLD_GROUPS} is not readable: {error}") from error
    archives = sorted((folder / LEARNER).rglob("*.pt"))
    if not archives:
        raise Damage(f"{LEARNER} has no files of weights")
    for archive in archives:
        name = archive.relative_to(folder).as_posix()
        try:
            with zipfile.ZipFile(archive) as opened:
                wrong = opened.testzip()
        except (OSError, zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
            raise Damage(f"{name} is not readable: {error}") from error
        if wrong is not None:
            raise Damage(f"{name} has changed: wrong checksum of {wrong}")


def _names(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def _hashed(folder: Path, names: Sequence[str]) -> list[StoredFile]:
    def one(name: str) -> StoredFile:
        with (folder / name).open("rb") as file:
            digest = file_digest(file, "sha256").hexdigest()
            return StoredFile(name, os.fstat(file.fileno()).st_size, digest)

    with ThreadPoolExecutor(THREADS) as threads:
        return list(threads.map(one, names))
