"""What a sink is, and what it is told about its run."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Final, Protocol

from rlsys.training.durable import replace_file

ID_FILE: Final = "tracking.json"


class Sink(Protocol):
    """Takes the numbers of one run. A row with a step that it knows already replaces that row."""

    def numbers(self, step: int, numbers: Mapping[str, float]) -> None:
        """Record numbers of a training step or of an evaluation; all of them are finite."""
        ...

    def episodes(self, step: int, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Record a table with one episode of every problem of an evaluation."""
        ...

    def close(self) -> None:
        """End the recording; what was recorded is complete afterwards."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """What a tracking service is told about a run."""

    project: str
    name: str
    id: str
    """The same when a run is resumed, so that it goes on in the same chart."""
    run_dir: Path
    config: Mapping[str, Any]


def run_id(run_dir: Path, *, resumed: bool) -> str:
    """Return the id under which the services know this run; a fresh run gets a new one."""
    path = run_dir / ID_FILE
    try:
        known = json.loads(path.read_text(encoding="utf-8"))["id"] if resumed else None
    except (OSError, ValueError, KeyError, TypeError):
        known = None
    if isinstance(known, str):
        return known
    new = uuid.uuid4().hex[:16]
    replace_file(path, json.dumps({"id": new}) + "\n")
    return new


def episode_table(episodes: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Return columns and rows of a table of episodes.

    Answers under a budget become the columns `answer/BUDGET` (all texts, joined with ` | `) and
    `score/BUDGET` (their mean). Other nested values become JSON text. Missing cells are None.
    """
    flat = [_flat(episode) for episode in episodes]
    columns = list(dict.fromkeys(name for row in flat for name in row))
    return columns, [[row.get(name) for name in columns] for row in flat]


def _flat(episode: Mapping[str, Any]) -> dict[str, Any]:
    row = {
        name: json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value
        for name, value in episode.items()
        if name != "answers"
    }
    by_budget: dict[int, list[Mapping[str, Any]]] = {}
    for answer in episode.get("answers", ()):
        by_budget.setdefault(answer["budget"], []).append(answer)
    for budget, answers in by_budget.items():
        row[f"answer/{budget}"] = " | ".join(str(answer["text"]) for answer in answers)
        row[f"score/{budget}"] = fmean(answer["score"] for answer in answers)
    return row
