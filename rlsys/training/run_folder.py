"""What belongs to a run folder as a whole: its configuration, and whether a run may go on in it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from rlsys.config import RunConfig
from rlsys.config.loading import load_recorded
from rlsys.config.reading import read_tree
from rlsys.errors import ConfigError, RunFolderError
from rlsys.training.checkpoints import whole_steps
from rlsys.training.durable import naming, replace_file, sync_tree

CONFIG = "config.yaml"
CHECKPOINTS = "checkpoints"
EXPORT = "export"
SAMPLES = "samples"
TENSORBOARD = "tensorboard"
FINISHED = "finished.json"

FREE_KEYS = (
    "name",
    "run_dir",
    "steps",
    "epochs",
    "learner",
    "generation",
    "sync",
    "rollout",
    "grading",
    "evaluation",
    "checkpoint",
    "watchdog",
    "reporting",
    "cluster",
)
"""Sections that say how long, how fast and where a run goes, not what it learns."""
MEANING_WITHIN = ("generation.temperature", "learner.lora")
"""Exceptions: keys below FREE_KEYS that do change what is learned. The optimizer's settings are
free: a run that broke off is continued with a smaller learning rate."""


class _Finished(msgspec.Struct):
    """finished.json: a run has come to its end, and `export` holds the weights after `step`."""

    step: int


def last_checkpoint(run_dir: Path) -> int:
    """Step of the newest checkpoint in `run_dir`, 0 if there is none; its files are not read."""
    return max(whole_steps(run_dir / CHECKPOINTS), default=0)


def check_writable(run_dir: Path) -> None:
    """Write a test file in every folder that the run writes to, and delete it; makes no folder.

    Raises RunFolderError.
    """
    within = [run_dir / name for name in (CHECKPOINTS, SAMPLES, TENSORBOARD)]
    for folder in [run_dir, *filter(os.path.lexists, within)]:
        if reason := cannot_write(folder):
            raise RunFolderError(
                f"run_dir {str(run_dir)!r} cannot be written ({reason}); give a run_dir in a "
                "folder that you may write to, on a disk with free space"
            )


def cannot_write(folder: Path) -> str | None:
    """Return why nothing can be written to `folder`, or to its nearest parent if it is not there.

    Makes no folder. A file is written because permissions alone do not tell: a disk may be full or
    read-only.
    """
    place = folder.absolute()
    try:
        while not os.path.lexists(place):
            place = place.parent
        if not place.is_dir():
            return f"{place} is no folder"
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"rlsys")
    except OSError as error:
        return f"{place}: {error.strerror or error}"
    return None


def mark_finished(run_dir: Path, step: int) -> None:
    """Record that the run has ended after `step` steps and that its export is complete."""
    with naming(run_dir / EXPORT):
        sync_tree(run_dir / EXPORT)
    replace_file(run_dir / FINISHED, msgspec.json.encode(_Finished(step)).decode() + "\n")


def unmark_finished(run_dir: Path) -> None:
    """Record that training goes on: the export is not that of the newest checkpoint any more."""
    (run_dir / FINISHED).unlink(missing_ok=True)


def finished_step(config: RunConfig) -> int | None:
    """Return the last step of a run that has nothing left to do; None for every other run."""
    try:
        record = (config.run_dir / FINISHED).read_bytes()
        step = msgspec.json.decode(record, type=_Finished).step
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    last, exported = last_checkpoint(config.run_dir), (config.run_dir / EXPORT).is_dir()
    return step if exported and step == last and step >= config.steps else None


def check_resume(config: RunConfig) -> None:
    """Refuse to go on in config.run_dir with a configuration that means another run.

    A folder without a checkpoint holds nothing to go on with and accepts any configuration.

    Raises ConfigError naming the first key that differs, or a record that cannot be read.
    """
    if not last_checkpoint(config.run_dir):
        return
    recorded = _recorded(config.run_dir / CONFIG).model_dump(mode="json")
    asked = config.model_dump(mode="json")
    for key, before, now in _differences(recorded, asked):
        if _changes_meaning(key):
            raise ConfigError(
                f"{key} is {now!r} but the run in {config.run_dir} was trained with {before!r}; "
                f"set it back, or give another run_dir for a new run"
            )


def _recorded(path: Path) -> RunConfig:
    """The configuration that the checkpoints beside `path` were trained with."""
    try:
        # A record is complete; one that was cut off lacks its last sections, and would be read as
        # if they had their defaults.
        if "checkpoint" not in read_tree(path):
            raise ConfigError("it is empty or ends too early")
        return load_recorded(path)
    except (ConfigError, OSError, UnicodeDecodeError) as error:
        cause = " ".join(str(error).split())
        raise ConfigError(
            f"{path}, the record of what the checkpoints beside it were trained with, is damaged "
            f"({cause}); restore it from a backup, or write it again with `rlsys config show "
            f"CONFIG.yaml > {path}` from the configuration that the run was started with"
        ) from error


def _differences(
    before: dict[str, object], now: dict[str, object], prefix: str = ""
) -> Iterator[tuple[str, object, object]]:
    """Dotted key and both values of every difference, in the order of the schema."""
    for name in {**now, **before}:
        old, new = before.get(name), now.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from _differences(old, new, f"{prefix}{name}.")
        elif old != new:
            yield f"{prefix}{name}", old, new


def _changes_meaning(key: str) -> bool:
    within = any(key == known or key.startswith(f"{known}.") for known in MEANING_WITHIN)
    return within or key.split(".")[0] not in FREE_KEYS
