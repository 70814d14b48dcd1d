"""The learner as the driver sees it: one typed, asynchronous object over N ranks.

The driver holds references and numbers. Every rank gets only the groups it trains on, straight from
the object store.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import ray

from learner.plan import Size, make_plan
from learner.spec import LearnerSpec
from learner.worker import LearnerWorker
from rlsys.types import Floats, Tokens

TrainGroup = tuple[Any, Sequence[Size]]
"""Reference to a tuple of Samples in the object store, and the size of each of them."""


class LearnerGroup:
    """All ranks of the learner. Exceptions of any rank surface at once; the caller then kills all.

    Methods must not overlap: each of them may run a collective on every rank.
    """

    def __init__(self, actors: Sequence[Any], spec: LearnerSpec) -> None:
        self._actors = list(actors)
        self._spec = spec

    @classmethod
    async def start(cls, spec: LearnerSpec, options: Sequence[Mapping[str, Any]]) -> LearnerGroup:
        """Start one actor per rank and wait until the policy is loaded everywhere.

        Args:
            spec: what the ranks are told; `rank` is set here.
            options: Ray actor options (resources, placement) of every rank.
        """
        actor_class = ray.remote(LearnerWorker)
        actors = [
            actor_class.options(**rank_options).remote(dataclasses.replace(spec, rank=rank))
            for rank, rank_options in enumerate(options)
        ]
        group = cls(actors, spec)
        await group.call_all("setup", *await group.address())
        return group

    @property
    def actors(self) -> list[Any]:
        """Ray handles of the ranks, in order."""
        return list(self._actors)

    async def address(self) -> tuple[str, int]:
        """Return the address of rank 0's node and a free port on it."""
        address: tuple[str, int] = await self._actors[0].address.remote()
        return address

    async def step(self, groups: Sequence[TrainGroup]) -> dict[str, float]:
        """Train on a batch of groups and return the metrics of LearnerWorker.step."""
        plans = make_plan(
            [sizes for _, sizes in groups],
            row_tokens=self._spec.config.row_tokens,
            ranks=len(self._actors),
            optimizer_steps=self._spec.optimizer_steps,
        )
        # Ray resolves references that are arguments themselves, not those inside a list.
        metrics: list[dict[str, float]] = await asyncio.gather(
            *(
                actor.step.remote(plan, *(groups[g][0] for g in plan.groups))
                for actor, plan in zip(self._actors, plans, strict=True)
            )
        )
        return metrics[0]

    async def sequence_logprobs(self, sequences: Sequence[Tokens]) -> list[Floats]:
        """Return, per sequence, the log-probs of its tokens but the first, at temperature 1."""
        answers: list[list[Floats]] = await self.call_all("sequence_logprobs", list(sequences))
        return answers[0]

    async def save(self, folder: str, tag: str) -> None:
        """Write a checkpoint to `folder/tag`, which every rank must reach."""
        await self.call_all("save", folder, tag)

    async def load(self, folder: str, tag: str) -> None:
        """Go on from a checkpoint; raises CheckpointError if it does not fit."""
        await self.call_all("load", folder, tag)

    async def export(self, folder: str) -> None:
        """Write a Hugging Face folder."""
        await self.call_all("export", folder)

    async def call_all(self, method: str, *args: Any) -> list[Any]:
        """Call a method of LearnerWorker on every rank and return the answers in rank order."""
        return await asyncio.gather(
            *(getattr(actor, method).remote(*args) for actor in self._actors)
        )

    async def close(self) -> None:
        """End every rank and free its resources."""
        try:
            await self.call_all("close")
        finally:  # a rank that waits for a dead one never answers; the caller's time-out ends here
            for actor in self._actors:
                ray.kill(actor)
