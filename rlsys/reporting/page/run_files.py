"""What a run left in its folder, as rows."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from rlsys.config.reading import read_tree
from rlsys.errors import ConfigError, RunFolderError
from rlsys.reporting.ledger_file import LEDGER, read_ledger
from rlsys.reporting.metrics_file import (
    EVALUATION,
    METRICS,
    EvaluationRecord,
    read_evaluations,
    read_rows,
)
from rlsys.reporting.reporter import OWN_SAMPLES
from rlsys.training.ledger import GroupFate
from rlsys.training.run_folder import CONFIG, FINISHED, SAMPLES
from rlsys.training.run_lock import LOCK, SILENT_SECONDS

T = TypeVar("T")

STEP_FILES: Final = 20
"""Files of training episodes that are read of a run; a long run has one for every step."""
EVALUATION_FILES: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFiles:
    """The rows of one run, in the order of its steps."""

    name: str
    """Differs between the runs of one page."""
    folder: Path
    config: dict[str, Any]
    """config.yaml; empty if the file is missing or damaged."""
    steps: list[dict[str, Any]]
    """Rows of training steps. A number that was not finite is None."""
    evaluations: list[EvaluationRecord]
    samples: dict[str, list[dict[str, Any]]]
    """Episodes by the name of their file, for instance `evaluation-60`."""
    fates: list[GroupFate]
    finished: bool
    running: bool

    @property
    def last_step(self) -> int:
        """The newest step with a row, 0 without one."""
        numbers = [row["step"] for row in self.steps] + [e.step for e in self.evaluations]
        return max(numbers, default=0)

    @property
    def state(self) -> str:
        """Return what the run does now, in words."""
        if self.finished:
            return "finished"
        return "running" if self.running else "stopped"


def read_runs(folders: Sequence[Path]) -> list[RunFiles]:
    """Read runs, and give each a name of its own: that of its configuration, or its path.

    Raises RunFolderError if a folder holds no metrics.
    """
    runs = [_read(folder) for folder in folders]
    names = [str(run[1].get("name") or run[0].name) for run in runs]
    return [
        _run(folder, config, name if names.count(name) == 1 else str(folder))
        for name, (folder, config) in zip(names, runs, strict=True)
    ]


def _read(folder: Path) -> tuple[Path, dict[str, Any]]:
    if not read_rows(folder / METRICS):
        raise RunFolderError(
            f"{folder} holds no rows in {METRICS}; give the run_dir of `rlsys train` or "
            "`rlsys sft` after its first step, RUN_DIR/evaluation of `rlsys eval`, or the run_dir "
            "of `rlsys eval sets`"
        )
    try:
        return folder, read_tree(folder / CONFIG)
    except (ConfigError, OSError, UnicodeDecodeError):
        return folder, {}


def _run(folder: Path, config: dict[str, Any], name: str) -> RunFiles:
    rows = read_rows(folder / METRICS)
    return RunFiles(
        name=name,
        folder=folder,
        config=config,
        steps=[row for row in rows if not any(key.startswith(EVALUATION) for key in row)],
        evaluations=read_evaluations(folder / METRICS),
        samples=_samples(folder / SAMPLES),
        fates=read_ledger(folder) if (folder / LEDGER).is_file() else [],
        finished=(folder / FINISHED).is_file(),
        running=_shows_life(folder / LOCK),
    )


def _shows_life(lock: Path) -> bool:
    """True if a run touched its lock a short time ago (see rlsys.training.run_lock)."""
    try:
        return time.time() - lock.stat().st_mtime < SILENT_SECONDS
    except OSError:
        return False


def _samples(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the episodes of the evaluations and of some steps; both kinds evenly spread."""
    found: dict[str, list[tuple[int, Path]]] = {"evaluation": [], "step": []}
    for path in folder.glob("*.jsonl"):
        if match := OWN_SAMPLES.fullmatch(path.name):
            found[path.name.partition("-")[0]].append((int(match[1]), path))
    # The newest evaluation first: that is what a reader looks for.
    chosen = [
        *reversed(evenly(sorted(found["evaluation"]), EVALUATION_FILES)),
        *reversed(evenly(sorted(found["step"]), STEP_FILES)),
    ]
    return {path.stem: _episodes(path) for _, path in chosen}


def evenly(items: Sequence[T], most: int) -> list[T]:
    """Return at most `most` (at least 2) items with equal distances, first and last included."""
    if len(items) <= most:
        return list(items)
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


def _episodes(path: Path) -> list[dict[str, Any]]:
    """Return the whole lines of a file of episodes."""
    episodes = []
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        try:
            episode = json.loads(line)
        except (json.JSONDecodeError, RecursionError):  # empty, or the process was killed here
            continue
        if isinstance(episode, dict):
            episodes.append(episode)
    return episodes
