"""The typed handle of an engine's Ray actor; nothing else calls a GenerationActor over Ray."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

import ray
from ray.exceptions import ActorDiedError, RayActorError

from actors.engine_state import EngineCounts, Heartbeat
from rlsys.errors import EngineDied
from rlsys.types import Completion, Floats, GenerationRequest, Tokens
from rlsys.weights import Bucket, StoredBucket

if TYPE_CHECKING:
    from ray.actor import ActorHandle

T = TypeVar("T")


class ProcessDied(EngineDied):
    """The actor's process is gone; Ray starts it again if it may."""


class EngineHandle:
    """The methods of GenerationActor, called in its own process.

    Each of them raises what the actor raises, and ProcessDied if the process is gone.
    """

    def __init__(self, index: int, actor: ActorHandle, name: str | None = None) -> None:
        """Call `actor`.

        Args:
            index: EngineSpec.index, for messages.
            actor: the handle of Ray.
            name: of the actor. If the actor is dead for good, an engine that has moved to another
                node may have a new actor with this name.
        """
        self.actor = actor
        self._index = index
        self._name = name

    async def start(self, serve: bool) -> dict[str, float]:
        """Load the engine; return the seconds of `import`, `load` and `compile`."""
        return await self._answer(self.actor.start.remote(serve))

    async def node(self) -> str:
        """Return Ray's id of the node that the actor is on."""
        return await self._answer(self.actor.node.remote())

    async def heartbeat(self) -> Heartbeat:
        """Report at once, whatever the engine does; raises EngineDied if the engine is gone."""
        return await self._answer(self.actor.heartbeat.remote())

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[list[Completion]]:
        """Return the n completions of every request, in request order."""
        return await self._answer(self.actor.generate.remote(requests))

    async def join_nccl(self, host: str, port: int, first_rank: int, world_size: int) -> None:
        """Bring the engine's workers into the learner's group, from rank `first_rank` on."""
        await self._answer(self.actor.join_nccl.remote(host, port, first_rank, world_size))

    async def begin_update(self) -> None:
        """Stop serving and prepare the workers for new weights."""
        await self._answer(self.actor.begin_update.remote())

    async def receive_files(self, paths: Sequence[str]) -> None:
        """Load buckets from safetensors files."""
        await self._answer(self.actor.receive_files.remote(paths))

    async def receive_objects(self, buckets: Sequence[StoredBucket]) -> None:
        """Load buckets from Ray's object store."""
        await self._answer(self.actor.receive_objects.remote(buckets))

    async def receive_ipc(self, handles: Sequence[bytes], buckets: Sequence[Bucket]) -> None:
        """Load buckets from buffers on the engine's card."""
        await self._answer(self.actor.receive_ipc.remote(handles, buckets))

    async def receive_nccl(self, buckets: Sequence[Bucket]) -> None:
        """Load buckets from the learner's broadcasts."""
        await self._answer(self.actor.receive_nccl.remote(buckets))

    async def finish_update(self, version: int) -> None:
        """Make the received weights live as `version`."""
        await self._answer(self.actor.finish_update.remote(version))

    async def verify(
        self, sequences: Sequence[Tokens], logprobs: Sequence[Floats], tolerance: float
    ) -> float:
        """Compare with the learner, serve again and return the mean gap in nats, or raise."""
        return await self._answer(self.actor.verify.remote(sequences, logprobs, tolerance))

    async def counts(self) -> EngineCounts:
        """Prompt tokens handled so far."""
        return await self._answer(self.actor.counts.remote())

    async def close(self) -> None:
        """Shut the engine's processes down."""
        await self._answer(self.actor.close.remote())

    def kill(self) -> None:
        """End the actor's process, also one that hangs; Ray starts it again if it may."""
        ray.kill(self.actor, no_restart=False)

    async def _answer(self, reference: Awaitable[T]) -> T:
        """Wait for a call; the one place where the death of an engine's actor gets its sentence."""
        try:
            return await reference
        except RayActorError as error:
            if self._name is not None and isinstance(error, ActorDiedError):
                with suppress(ValueError):  # nobody has the name, or not yet
                    self.actor = ray.get_actor(self._name)
            raise ProcessDied(
                f"the process of engine {self._index} died; give the same command again to go on "
                f"from the last checkpoint ({' '.join(str(error).split())})"
            ) from error
