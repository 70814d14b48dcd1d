"""Checkpoints of a run: written beside, then renamed, so a kill at any instant leaves a whole one.

checkpoints/step-40/learner/   the learner's own files
                    groups.pkl finished groups that were not trained yet
                    state.json step and format; written last, so its presence means complete
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from rlsys.errors import CheckpointError
from rlsys.training.protocols import FinishedGroup, Learner

FORMAT = 1
OWN = re.compile(r"step-\d+|\.step-\d+\.partial")
"""Names of folders that are written here, whole or not; what else lies there is the user's."""


class GroupFiles(Protocol):
    """Moves finished groups between the object store and a file."""

    async def write_groups(self, path: Path, groups: Mapping[int, FinishedGroup]) -> None:
        """Write the groups, samples included."""
        ...

    def read_groups(self, path: Path) -> dict[int, FinishedGroup]:
        """Read what write_groups wrote."""
        ...


class CheckpointStore:
    """Saves, finds and prunes the checkpoints of one run directory."""

    def __init__(self, folder: Path, keep: int, files: GroupFiles) -> None:
        self._folder = folder
        self._keep = keep
        self._files = files

    async def save(
        self, step: int, learner: Learner, finished: Mapping[int, FinishedGroup]
    ) -> None:
        """Write the checkpoint after `step` steps and delete those beyond the newest `keep`."""
        target = self._folder / f"step-{step}"
        partial = self._folder / f".step-{step}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        await learner.save(partial / "learner")
        await self._files.write_groups(partial / "groups.pkl", finished)
        (partial / "state.json").write_text(json.dumps({"format": FORMAT, "step": step}))
        _delete(target)
        os.replace(partial, target)
        self._prune()

    def latest(self) -> tuple[int, Path] | None:
        """Step and folder of the newest complete checkpoint, or None."""
        steps = complete_steps(self._folder)
        if not steps:
            return None
        folder = self._folder / f"step-{steps[-1]}"
        state = json.loads((folder / "state.json").read_text())
        if state["format"] != FORMAT:
            raise CheckpointError(
                f"checkpoint {folder} has format {state['format']}, this version of rlsys reads "
                f"{FORMAT}; resume with the version that wrote it or start a new run directory"
            )
        return steps[-1], folder

    def read_groups(self, folder: Path) -> dict[int, FinishedGroup]:
        """Finished groups of the checkpoint in `folder`, by ticket."""
        return self._files.read_groups(folder / "groups.pkl")

    def _prune(self) -> None:
        """Delete all but the newest `keep`, and whatever a kill left of a save or a deletion."""
        kept = {f"step-{step}" for step in complete_steps(self._folder)[-self._keep :]}
        for folder in self._folder.iterdir():
            if OWN.fullmatch(folder.name) and folder.name not in kept:
                _delete(folder)


def complete_steps(folder: Path) -> list[int]:
    """Steps of the complete checkpoints in a folder, oldest first."""
    names = (file.parent.name for file in folder.glob("step-*/state.json"))
    return sorted(int(name.removeprefix("step-")) for name in names if OWN.fullmatch(name))


def _delete(folder: Path) -> None:
    """Its last file goes first: a kill in between leaves no checkpoint that only looks whole."""
    (folder / "state.json").unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
