"""The typed handle of a learner rank's Ray actor; nothing else calls a LearnerWorker over Ray."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import ray
from ray.exceptions import RayActorError

from learner.plan import RankPlan
from learner.sync import SyncSpec
from rlsys.errors import LearnerDied
from rlsys.types import Floats, Sample, Tokens
from rlsys.weights import Bucket, SentPart

if TYPE_CHECKING:
    from ray.actor import ActorHandle

T = TypeVar("T")

ANSWER_SECONDS: Final = 10.0
"""How long an idle rank may take to answer."""


class RankHandle:
    """The methods of LearnerWorker, called in its own process.

    Each of them raises what the worker raises, and LearnerDied if the process is gone.
    """

    def __init__(self, rank: int, actor: ActorHandle) -> None:
        self.actor = actor
        self._rank = rank

    async def address(self) -> tuple[str, int]:
        """Return an address of the rank's node and a free port on it."""
        return await self._answer(self.actor.address.remote())

    async def node(self) -> str:
        """Return Ray's id of the rank's node."""
        return await self._answer(self.actor.node.remote())

    async def setup(self, master_address: str, master_port: int) -> None:
        """Join the group and load the policy."""
        await self._answer(self.actor.setup.remote(master_address, master_port))

    async def step(
        self, plan: RankPlan, *groups: Awaitable[tuple[Sample, ...]]
    ) -> dict[str, float]:
        """Train on one batch; `groups` are object references, which Ray resolves on the way."""
        return await self._answer(self.actor.step.remote(plan, *groups))

    async def sequence_logprobs(self, sequences: Sequence[Tokens]) -> list[Floats]:
        """Return, per sequence, the log-probs of its tokens but the first, at temperature 1."""
        return await self._answer(self.actor.sequence_logprobs.remote(sequences))

    async def open_sync(self, spec: SyncSpec) -> list[Bucket]:
        """Prepare to send weights; return the plan of buckets."""
        return await self._answer(self.actor.open_sync.remote(spec))

    async def join_sync(self, host: str) -> None:
        """Meet the engines' workers; returns once all are there."""
        await self._answer(self.actor.join_sync.remote(host))

    async def send(self) -> list[SentPart]:
        """Send all buckets of the current weights."""
        return await self._answer(self.actor.send.remote())

    async def save(self, folder: Path) -> None:
        """Write everything that is needed to continue from here to `folder`."""
        await self._answer(self.actor.save.remote(folder))

    async def load(self, folder: Path) -> None:
        """Continue from what `save` wrote."""
        await self._answer(self.actor.load.remote(folder))

    async def export(self, folder: Path) -> None:
        """Write a Hugging Face folder."""
        await self._answer(self.actor.export.remote(folder))

    async def answers(self) -> bool:
        """Return True if the rank takes a call within ANSWER_SECONDS; one that works does not."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await self._answer(self.actor.answers.remote())
        except (TimeoutError, LearnerDied):
            return False

    async def on_node(self, function: Callable[..., T], *args: object) -> T:
        """Call a function in the rank's process, for work on the files of its node."""
        return await self._answer(self.actor.on_node.remote(function, *args))

    async def close(self) -> None:
        """Leave the process group."""
        await self._answer(self.actor.close.remote())

    def kill(self) -> None:
        """End the rank's process at once and free its resources."""
        ray.kill(self.actor)

    async def _answer(self, reference: Awaitable[T]) -> T:
        """Wait for a call; the one place where the death of a rank gets its sentence."""
        try:
            return await reference
        except RayActorError as error:
            raise LearnerDied(
                f"the process of learner rank {self._rank} died; give the same command again to go "
                f"on from the last checkpoint ({' '.join(str(error).split())})"
            ) from error
