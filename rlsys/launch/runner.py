"""Environment actors behind the main loop's GroupRunner protocol."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray

from actors.pools import GenerationPool
from rlsys.training.protocols import FinishedGroup
from rlsys.types import GroupReport, Task


class RayRunner:
    """Sends each group to the environment actor with the fewest groups in hand."""

    def __init__(self, environments: Sequence[Any], engines: GenerationPool) -> None:
        self._environments = list(environments)
        self._in_hand = [0] * len(self._environments)
        self._engines = engines

    async def train_group(self, index: int, task: Task) -> FinishedGroup:
        """Grow one training group; its samples stay in the object store."""
        with self._environment() as actor:
            method = actor.train_group.options(num_returns=2)
            samples, report = method.remote(index, task)
            return FinishedGroup(report=await report, samples=samples)

    async def evaluate_group(self, index: int, task: Task) -> GroupReport:
        """Grow one evaluation group."""
        with self._environment() as actor:
            report: GroupReport = await actor.evaluate_group.remote(index, task)
            return report

    async def cached_share(self) -> float:
        """Share of all prompt tokens so far that a prefix cache served."""
        counts = await self._engines.counts()
        return counts.cached_tokens / max(counts.prompt_tokens, 1)

    def close(self) -> None:
        """End the environment actors; what they still grow would ask engines that are gone."""
        for environment in self._environments:
            ray.kill(environment)

    @contextmanager
    def _environment(self) -> Iterator[Any]:
        """The least busy environment actor, for the time one group takes."""
        index = min(range(len(self._in_hand)), key=self._in_hand.__getitem__)
        self._in_hand[index] += 1
        try:
            yield self._environments[index]
        finally:
            self._in_hand[index] -= 1


class ObjectStoreFiles:
    """Moves finished groups between the object store and a checkpoint."""

    async def write_groups(self, path: Path, groups: Mapping[int, FinishedGroup]) -> None:
        """Write reports and samples of finished groups."""
        samples = await asyncio.gather(*(g.samples for g in groups.values()))
        rows = [(t, g.report, s) for (t, g), s in zip(groups.items(), samples, strict=True)]
        path.write_bytes(pickle.dumps(rows))

    def read_groups(self, path: Path) -> dict[int, FinishedGroup]:
        """Put the groups of a checkpoint back into the object store."""
        rows = pickle.loads(path.read_bytes())
        return {t: FinishedGroup(report=r, samples=ray.put(s)) for t, r, s in rows}
