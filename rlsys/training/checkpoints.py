"""Checkpoints of a run: written beside, sealed, then renamed; verified before they are used.

    checkpoints/step-40/          a whole checkpoint, see rlsys.training.checkpoint_files
                .step-50.partial/ one that is being written, or that a kill left; deleted later
                step-30.damaged/  one whose files have changed; kept until the user deletes it

A rename is the only way by which a folder becomes `step-N` or stops being it, so a kill at any
instant leaves whole checkpoints under these names and nothing else.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import NamedTuple

from rlsys.errors import CheckpointError
from rlsys.training.checkpoint_files import (
    GROUPS,
    LEARNER,
    Damage,
    check_sizes,
    read_groups,
    read_state,
    seal,
    verify,
)
from rlsys.training.durable import disk_full, missing_bytes, naming, sync_folder
from rlsys.training.group_codec import StoredGroup, encode_groups
from rlsys.training.protocols import FinishedGroup, Learner

WHOLE = re.compile(r"step-(\d+)")
LEFT_OVER = re.compile(r"\.step-\d+\.(partial|deleted)(-\d+)?")
"""Folders that are written here and that a kill may leave. What else lies there is the user's."""
DAMAGED = "damaged"
FULL_BYTES = 1 << 20
"""A failed save with less free space than this is taken for the result of a full disk."""


class Checkpoint(NamedTuple):
    """A verified checkpoint."""

    step: int
    folder: Path

    @property
    def learner(self) -> Path:
        """The folder of the learner's files."""
        return self.folder / LEARNER

    def groups(self) -> list[StoredGroup]:
        """Return the groups that were finished and not trained; raises CheckpointError."""
        return read_groups(self.folder)

    def next_group(self, per_step: int) -> int:
        """Return the first group, in admission order, that no step has taken.

        `per_step` is the number of groups per step, for checkpoints that do not name the group.
        """
        stored = read_state(self.folder).next_group
        return self.step * per_step if stored is None else stored


class CheckpointStore:
    """Saves, finds and prunes the checkpoints of one run directory."""

    def __init__(
        self,
        folder: Path,
        keep: int,
        tell: Callable[[str], None],
        copy: Callable[[int], None] | None = None,
    ) -> None:
        """`tell` takes one sentence for the user, for instance about a damaged checkpoint.

        `copy` is called with the step of every checkpoint that was saved, in a thread.
        """
        self._folder = folder
        self._keep = keep
        self._tell = tell
        self._copy = copy

    async def save(
        self,
        step: int,
        learner: Learner,
        finished: Mapping[int, FinishedGroup],
        next_group: int,
    ) -> None:
        """Write the checkpoint after `step` steps and delete those beyond the newest `keep`.

        `finished` are the groups that wait for a later step, `next_group` is the first group that
        no step has taken.

        Raises:
            CheckpointError: the disk has too little space; nothing of the save is left then.
            DiskError: the folder cannot be written for another reason.
        """
        target = self._folder / f"step-{step}"
        with naming(target):
            self._folder.mkdir(parents=True, exist_ok=True)
            self._check_space(step)
            partial = _new_folder(self._folder, f".step-{step}.partial")
        try:
            with naming(target):
                await learner.save(partial / LEARNER)
                samples = await asyncio.gather(*(group.samples for group in finished.values()))
                groups = [
                    StoredGroup(ticket, group.report, of_group)
                    for (ticket, group), of_group in zip(finished.items(), samples, strict=True)
                ]
                # In a thread: hashing and flushing take minutes for a large model, and rollouts go
                # on.
                await asyncio.to_thread(_finish, partial, step, groups, next_group)
        except BaseException as error:
            full = disk_full(error) or missing_bytes(self._folder, FULL_BYTES) > 0
            _remove(partial)
            if full and isinstance(error, Exception):
                raise CheckpointError(
                    f"the disk of {self._folder} is full, so the checkpoint of step {step} was not "
                    "written; free some space and give the same command again"
                ) from error
            raise
        with naming(target):
            self._publish(partial, target)
            self._prune()
        if self._copy is not None:
            await asyncio.to_thread(self._copy, step)

    def latest(self) -> Checkpoint | None:
        """Return the newest good checkpoint, None if nothing was saved yet; hashes all its files.

        Damaged ones that are newer are renamed, and the user is told.

        Raises:
            CheckpointError: none is good, or a newer version of rlsys wrote the newest. Nothing is
                renamed then.
        """
        return self._newest(self._set_aside)

    def inspect(self) -> Checkpoint | None:
        """Return and tell what `latest` would, and raise what it would raise; rename nothing."""
        return self._newest(
            lambda folder, what: self._tell(f"checkpoint {folder} is damaged: {what}")
        )

    def _newest(self, handle: Callable[[Path, str], None]) -> Checkpoint | None:
        """Return the newest good checkpoint after `handle` was called with all newer ones."""
        damages: dict[Path, str] = {}
        for step in reversed(whole_steps(self._folder)):
            folder = self._folder / f"step-{step}"
            try:
                verify(folder)
            except Damage as damage:
                damages[folder] = str(damage)
                continue
            for damaged, what in damages.items():
                handle(damaged, f"{what}; the run goes on from step {step}")
            return Checkpoint(step, folder)
        # A run with nothing but damaged checkpoints must not start from step 0 by itself: its
        # metrics and samples would be dropped.
        for folder in sorted(self._folder.glob(f"step-*.{DAMAGED}*")):
            damages[folder] = "set aside earlier"
        if damages:
            listed = ", ".join(f"{folder.name} ({what})" for folder, what in damages.items())
            raise CheckpointError(
                f"no checkpoint in {self._folder} is whole: {listed}; restore one from a backup, "
                "or give another run_dir for a new run"
            )
        return None

    def _check_space(self, step: int) -> None:
        """Refuse a save that cannot fit; warn if it is the last one that fits."""
        steps = whole_steps(self._folder)
        if not steps:
            return
        before = self._folder / f"step-{steps[-1]}"
        size = sum(file.stat().st_size for file in before.rglob("*") if file.is_file())
        disk = f"the disk of {self._folder.absolute()}"
        if missing := missing_bytes(self._folder, size):
            raise CheckpointError(
                f"{disk} lacks {missing:,} bytes for the checkpoint of step {step} (about "
                f"{size:,} bytes); free some space and give the same command again to go on from "
                f"step {steps[-1]}"
            )
        if missing := missing_bytes(self._folder, 2 * size):
            self._tell(
                f"{disk} has space for one more checkpoint only; free {missing:,} bytes before "
                "the next one"
            )

    def _publish(self, partial: Path, target: Path) -> None:
        if target.exists():
            _delete(target)
        os.replace(partial, target)
        sync_folder(self._folder)

    def _prune(self) -> None:
        """Delete all good checkpoints but the newest `keep`, and what a kill left behind."""
        good = []
        for step in whole_steps(self._folder):
            folder = self._folder / f"step-{step}"
            try:
                check_sizes(folder)
                good.append(folder)
            except Damage as damage:
                self._set_aside(folder, str(damage))
            except CheckpointError:  # of a newer version of rlsys: not ours to delete
                continue
        for folder in good[: -self._keep]:
            _delete(folder)
        for folder in self._folder.iterdir():
            if LEFT_OVER.fullmatch(folder.name):
                _remove(folder)

    def _set_aside(self, folder: Path, what: str) -> None:
        kept = _free_name(self._folder, f"{folder.name}.{DAMAGED}")
        os.replace(folder, kept)
        sync_folder(self._folder)
        self._tell(f"checkpoint {folder} is damaged and is now called {kept.name}: {what}")


def whole_steps(folder: Path) -> list[int]:
    """Steps of the checkpoints in a folder, oldest first; their files are not looked at."""
    found = (WHOLE.fullmatch(path.name) for path in folder.glob("step-*") if path.is_dir())
    return sorted(int(match[1]) for match in found if match)


def _finish(partial: Path, step: int, groups: list[StoredGroup], next_group: int) -> None:
    (partial / GROUPS).write_bytes(encode_groups(groups))
    seal(partial, step, next_group)


def _new_folder(parent: Path, name: str) -> Path:
    """Make an empty folder; what a kill left under its name is deleted, or stays if it cannot."""
    _remove(parent / name)
    folder = _free_name(parent, name)
    folder.mkdir()
    return folder


def _free_name(parent: Path, name: str) -> Path:
    names = (parent / (f"{name}-{number}" if number else name) for number in count())
    return next(path for path in names if not os.path.lexists(path))


def _delete(folder: Path) -> None:
    """Renamed first: a kill in between leaves no checkpoint that only looks whole."""
    gone = _free_name(folder.parent, f".{folder.name}.deleted")
    os.replace(folder, gone)
    _remove(gone)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    elif os.path.lexists(path):
        path.unlink(missing_ok=True)
