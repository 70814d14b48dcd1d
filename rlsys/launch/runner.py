"""Environment actors behind the main loop's GroupRunner protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import ray

from actors.pools import GenerationPool
from rlsys.training.group_codec import StoredGroup
from rlsys.training.protocols import FinishedGroup
from rlsys.types import GroupReport, Task

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.actor import ActorHandle


class RayRunner:
    """Sends each group to the environment actor that runs the fewest groups."""

    def __init__(
        self,
        environments: Sequence[ActorHandle],
        engines: GenerationPool,
        moved: Callable[[], None] = lambda: None,
    ) -> None:
        """`environments` are Ray handles of EnvironmentActors; groups call `moved` at their end."""
        self.engines = engines
        self._environments = list(environments)
        self._running = [0] * len(self._environments)
        self._avoided: frozenset[int] = frozenset()
        self._moved = moved

    async def train_group(self, index: int, task: Task) -> FinishedGroup:
        """Roll out one training group; its samples stay in the object store."""
        with self._environment() as actor:
            # Two results are two objects, so the samples can be left unread.
            method = actor.train_group.options(num_returns=2)
            samples, report = method.remote(index, task)
            return FinishedGroup(report=await self._finished(report), samples=samples)

    async def evaluate_group(self, index: int, task: Task) -> GroupReport:
        """Roll out one evaluation group."""
        with self._environment() as actor:
            return await self._finished(actor.evaluate_group.remote(index, task))

    async def _finished(self, report: ObjectRef) -> GroupReport:
        """Wait for a group; one that nobody waits for any more is not rolled out to its end."""
        try:
            result: GroupReport = await report
        except asyncio.CancelledError:
            ray.cancel(report)
            raise
        self._moved()
        return result

    def avoid(self, environments: Iterable[int]) -> None:
        """Send no new group to these environment actors while there are others."""
        self._avoided = frozenset(environments)

    async def rerouted(self) -> int:
        """Return how many requests had to be sent again, because an engine died."""
        return sum(await asyncio.gather(*(e.rerouted.remote() for e in self._environments)))

    async def cached_share(self) -> float:
        """Return the share of all prompt tokens so far that was found in a prefix cache."""
        counts = await self.engines.counts()
        return counts.cached_tokens / max(counts.prompt_tokens, 1)

    def close(self) -> None:
        """Kill the environment actors: unfinished rollouts would call engines that are gone."""
        for environment in self._environments:
            ray.kill(environment)

    @contextmanager
    def _environment(self) -> Iterator[ActorHandle]:
        """Lend the least busy environment actor for the time that one group takes."""
        index = min(range(len(self._running)), key=lambda i: (i in self._avoided, self._running[i]))
        self._running[index] += 1
        try:
            yield self._environments[index]
        finally:
            self._running[index] -= 1


def stored_groups(groups: Iterable[StoredGroup]) -> dict[int, FinishedGroup]:
    """Put the groups of a checkpoint back into the object store; the result is by ticket."""
    return {
        group.ticket: FinishedGroup(report=group.report, samples=ray.put(group.samples))
        for group in groups
    }
