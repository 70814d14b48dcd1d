"""The learner as the driver sees it: one typed, asynchronous object over N ranks.

The driver holds references and numbers. Every rank gets only the groups it trains on, straight from
the object store.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import ray

from learner.handle import RankHandle
from learner.metrics import run_names
from learner.plan import Size, make_plan
from learner.spec import LearnerSpec
from learner.sync import SyncSpec
from learner.worker import LearnerWorker
from rlsys.types import Floats, Sample, Tokens
from rlsys.weights import Bucket, SentPart

if TYPE_CHECKING:
    from ray.actor import ActorHandle


class TrainGroup(Protocol):
    """Samples that stay together in one optimizer step."""

    @property
    def samples(self) -> Awaitable[tuple[Sample, ...]]:
        """Their reference in Ray's object store."""
        ...

    @property
    def sizes(self) -> Sequence[Size]:
        """Tokens and trained tokens of each of them, for a plan without looking at the samples."""
        ...


class StoredSamples(NamedTuple):
    """A TrainGroup of samples that the caller has in memory."""

    samples: Awaitable[tuple[Sample, ...]]
    sizes: Sequence[Size]

    @classmethod
    def put(cls, samples: Sequence[Sample]) -> StoredSamples:
        """Put samples into Ray's object store."""
        sizes = [(s.num_tokens, s.num_trained) for s in samples]
        return cls(ray.put(tuple(samples)), sizes)


class LearnerGroup:
    """All ranks of the learner: the Learner of the main loop, and the WeightSource of a sync.

    An exception of any rank surfaces at once; the caller then closes the group. Methods must not
    overlap, because each of them may run a collective on every rank.
    """

    def __init__(self, ranks: Sequence[ActorHandle], spec: LearnerSpec) -> None:
        """`ranks` are Ray handles of LearnerWorkers, in order; `setup` comes before all else."""
        self._ranks = [RankHandle(rank, actor) for rank, actor in enumerate(ranks)]
        self._spec = spec

    @classmethod
    async def start(
        cls, spec: LearnerSpec, options: Sequence[Mapping[str, object]]
    ) -> LearnerGroup:
        """Start one actor per rank and wait until the policy is loaded everywhere.

        Args:
            spec: what the ranks are told; `rank` is set here.
            options: Ray actor options (resources, placement) of every rank.
        """
        actor_class = ray.remote(LearnerWorker)
        group = cls(
            [
                actor_class.options(**rank_options).remote(dataclasses.replace(spec, rank=rank))
                for rank, rank_options in enumerate(options)
            ],
            spec,
        )
        await group.setup()
        return group

    async def setup(self) -> None:
        """Let the ranks meet on rank 0's node, and load the policy on each of them."""
        host, port = await self.address()
        await asyncio.gather(*(rank.setup(host, port) for rank in self._ranks))

    async def address(self) -> tuple[str, int]:
        """Return the address of rank 0's node and a free port on it."""
        return await self._ranks[0].address()

    async def step(self, groups: Sequence[TrainGroup]) -> dict[str, float]:
        """Train on a batch of groups; return LearnerWorker.step's metrics under a run's names."""
        plans = make_plan(
            [group.sizes for group in groups],
            row_tokens=self._spec.config.row_tokens,
            ranks=len(self._ranks),
            optimizer_steps=self._spec.optimizer_steps,
        )
        # Ray resolves references that are arguments themselves, not those inside a list.
        metrics = await asyncio.gather(
            *(
                rank.step(plan, *(groups[g].samples for g in plan.groups))
                for rank, plan in zip(self._ranks, plans, strict=True)
            )
        )
        return run_names(metrics[0])  # the same on every rank

    async def sequence_logprobs(self, sequences: Sequence[Tokens]) -> list[Floats]:
        """Return, per sequence, the log-probs of its tokens but the first, at temperature 1."""
        # All ranks compute all of them: with ZeRO-3 a forward pass needs every rank.
        answers = await asyncio.gather(*(rank.sequence_logprobs(sequences) for rank in self._ranks))
        return answers[0]

    async def open_sync(self, spec: SyncSpec) -> list[Bucket]:
        """Prepare every rank to send weights; return the plan of buckets."""
        plans = await asyncio.gather(*(rank.open_sync(spec) for rank in self._ranks))
        return plans[0]

    async def join_sync(self, host: str) -> None:
        """Meet the engines' workers at rank 0, whose address is `host`."""
        await asyncio.gather(*(rank.join_sync(host) for rank in self._ranks))

    async def send(self, bucket: int) -> list[SentPart]:
        """Send one bucket of the current weights; return what every rank left for the engines."""
        return await asyncio.gather(*(rank.send_bucket(bucket) for rank in self._ranks))

    async def save(self, folder: Path) -> None:
        """Write a checkpoint to `folder`, which every rank must reach."""
        await asyncio.gather(*(rank.save(folder.absolute()) for rank in self._ranks))

    async def load(self, folder: Path) -> None:
        """Continue from a checkpoint; raises CheckpointError if it does not fit."""
        await asyncio.gather(*(rank.load(folder.absolute()) for rank in self._ranks))

    async def export(self, folder: Path) -> None:
        """Write a Hugging Face folder of the current weights."""
        await asyncio.gather(*(rank.export(folder.absolute()) for rank in self._ranks))

    async def close(self) -> None:
        """End every rank and free its resources."""
        try:
            await asyncio.gather(*(rank.close() for rank in self._ranks))
        finally:
            # Also after the caller's time-out: a rank that waits for a dead one never returns.
            for rank in self._ranks:
                rank.kill()
