"""Environment actors behind the main loop's GroupRunner protocol."""

from __future__ import annotations

import asyncio
import time
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
        self._asked: tuple[float, float] | None = None
        """Time and busy seconds of the engines at the last call of `engine_metrics`."""

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

    async def engine_metrics(self) -> dict[str, float]:
        """Return the share of prompt tokens that came from a prefix cache, of the run so far.

        From the second call on, also the share of the time since the last call in which an engine
        had a request, as the mean over engines.
        """
        counts, now = await self.engines.counts(), time.monotonic()
        metrics = {"prefix_cache/share": counts.cached_tokens / max(counts.prompt_tokens, 1)}
        if self._asked is not None:
            then, busy_s = self._asked
            possible = (now - then) * len(self.engines.engines)
            # An engine that was started again meanwhile counts from 0.
            metrics["busy/engines"] = min(max((counts.busy_s - busy_s) / possible, 0.0), 1.0)
        self._asked = now, counts.busy_s
        return metrics

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
