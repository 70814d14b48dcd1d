"""What the main loop needs; rlsys.launch provides Ray actors for it, tests provide fakes."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from rlsys.training.ledger import GroupFate
from rlsys.types import GroupReport, Sample, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedGroup:
    """A group whose rollouts are done: its numbers, and where its samples are."""

    report: GroupReport
    samples: Awaitable[tuple[Sample, ...]]
    """Reference in Ray's object store; only learner ranks and checkpoints read the samples."""

    @property
    def sizes(self) -> Sequence[tuple[int, int]]:
        """Tokens and trained tokens of every sample."""
        return self.report.sizes


class GroupRunner(Protocol):
    """Rolls out groups, many at once."""

    async def train_group(self, index: int, task: Task) -> FinishedGroup:
        """Roll out the training group at this place in the admission order."""
        ...

    async def evaluate_group(self, index: int, task: Task) -> GroupReport:
        """Roll out one evaluation group."""
        ...

    async def engine_metrics(self) -> Mapping[str, float]:
        """Return `prefix_cache/share` of the run so far, and `busy/engines` since the last call."""
        ...


class Learner(Protocol):
    """Trains on groups."""

    async def step(self, groups: Sequence[FinishedGroup]) -> dict[str, float]:
        """Run one training step; return its metrics."""
        ...

    async def save(self, folder: Path) -> None:
        """Write model, optimizer and counters below `folder`."""
        ...

    async def export(self, folder: Path) -> None:
        """Write a Hugging Face folder of the current weights."""
        ...


class Weights(Protocol):
    """Publishes the learner's weights to the engines."""

    def learner_busy(self) -> AbstractAsyncContextManager[None]:
        """Return the block in which the learner trains and publishes.

        Outside it, engines that were started again receive the current weights.
        """
        ...

    async def publish(self, version: int) -> float:
        """Make the current weights live in every engine as `version`.

        Returns the mean gap in nats between learner and engines, see training.weight_sync. It is
        NaN if no engine was alive.
        """
        ...


class Reporter(Protocol):
    """Takes numbers, episodes and messages, for files and for the terminal."""

    def step(self, step: int, metrics: dict[str, float]) -> None:
        """Record the metrics of training step `step` (1-based)."""
        ...

    def episodes(self, step: int, episodes: list[dict[str, object]]) -> None:
        """Record readable episodes of training step `step`."""
        ...

    def fates(self, fates: Sequence[GroupFate]) -> None:
        """Record what became of the groups of a training step."""
        ...

    def evaluation(
        self, step: int, numbers: dict[str, float], episodes: list[dict[str, object]]
    ) -> None:
        """Record an evaluation after `step` steps: its means, and one episode of every problem."""
        ...

    def rewind(self, step: int) -> None:
        """Drop what is recorded of the steps after `step`: they are trained again."""
        ...

    def message(self, text: str) -> None:
        """Show a sentence to the user."""
        ...


class Departure(NamedTuple):
    """The learner stands on a node that is about to leave."""

    reason: str
    movable: bool
    """True if the learner can go on elsewhere at once; False if it stays to the end."""
