"""What the main loop needs from outside; launch provides Ray actors, tests provide fakes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rlsys.types import GroupReport, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedGroup:
    """A grown group: its numbers, and where its samples are."""

    report: GroupReport
    samples: Any
    """Handle of a tuple[Sample, ...] that the learner can resolve (an object reference)."""


class GroupRunner(Protocol):
    """Grows groups, many at once."""

    async def train_group(self, index: int, task: Task) -> FinishedGroup:
        """Grow the training group at this place in the admission order."""
        ...

    async def evaluate_group(self, index: int, task: Task) -> GroupReport:
        """Grow one evaluation group."""
        ...

    async def cached_share(self) -> float:
        """Share of all prompt tokens so far that a prefix cache served."""
        ...


class Learner(Protocol):
    """Trains on groups."""

    async def step(self, groups: Sequence[FinishedGroup]) -> dict[str, float]:
        """One training step; returns metrics."""
        ...

    async def save(self, folder: Path) -> None:
        """Write model, optimizer and counters below `folder`."""
        ...

    async def export(self, folder: Path) -> None:
        """Write a Hugging Face folder of the current weights."""
        ...


class Weights(Protocol):
    """Brings the learner's weights to the engines."""

    async def publish(self, version: int) -> float:
        """Make the current weights live everywhere as `version`; return the canary's gap."""
        ...


class Reporter(Protocol):
    """Where numbers and sentences go."""

    def step(self, step: int, metrics: dict[str, float]) -> None:
        """Record the metrics of training step `step` (1-based)."""
        ...

    def episodes(self, step: int, episodes: list[dict[str, Any]]) -> None:
        """Record readable episodes."""
        ...

    def evaluation(
        self, step: int, numbers: dict[str, float], episodes: list[dict[str, Any]]
    ) -> None:
        """Record an evaluation after `step` steps: its means, and one episode of every problem."""
        ...

    def message(self, text: str) -> None:
        """Tell the user something."""
        ...
