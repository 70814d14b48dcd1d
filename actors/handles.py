"""The typed handle of an engine's Ray actor; nothing else calls a GenerationActor over Ray."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, TypeVar

from ray.exceptions import RayActorError

from actors.generation import EngineCounts
from rlsys.errors import EngineError
from rlsys.types import Completion, Floats, GenerationRequest, Tokens
from rlsys.weights import Bucket

if TYPE_CHECKING:
    from ray.actor import ActorHandle

T = TypeVar("T")


class EngineHandle:
    """The methods of GenerationActor, called in its own process.

    Each of them raises what the actor raises, and EngineError if the process is gone.
    """

    def __init__(self, index: int, actor: ActorHandle) -> None:
        self._index = index
        self._actor = actor

    async def start(self) -> str:
        """Load the engine and return vLLM's version."""
        return await self._answer(self._actor.start.remote())

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[list[Completion]]:
        """Return the n completions of every request, in request order."""
        return await self._answer(self._actor.generate.remote(requests))

    async def join_nccl(self, host: str, port: int, first_rank: int, world_size: int) -> None:
        """Bring the engine's workers into the learner's group, from rank `first_rank` on."""
        await self._answer(self._actor.join_nccl.remote(host, port, first_rank, world_size))

    async def begin_update(self) -> None:
        """Stop serving and prepare the workers for new weights."""
        await self._answer(self._actor.begin_update.remote())

    async def receive_file(self, path: str) -> None:
        """Load one bucket from a safetensors file."""
        await self._answer(self._actor.receive_file.remote(path))

    async def receive_ipc(self, handle: bytes, bucket: Bucket) -> None:
        """Load one bucket from a buffer on the engine's card."""
        await self._answer(self._actor.receive_ipc.remote(handle, bucket))

    async def receive_nccl(self, bucket: Bucket) -> None:
        """Load one bucket from the learner's broadcast."""
        await self._answer(self._actor.receive_nccl.remote(bucket))

    async def finish_update(self, version: int) -> None:
        """Make the received weights live as `version`."""
        await self._answer(self._actor.finish_update.remote(version))

    async def verify(
        self, sequences: Sequence[Tokens], logprobs: Sequence[Floats], tolerance: float
    ) -> float:
        """Compare with the learner, serve again and return the mean gap in nats, or raise."""
        return await self._answer(self._actor.verify.remote(sequences, logprobs, tolerance))

    async def counts(self) -> EngineCounts:
        """Prompt tokens handled so far."""
        return await self._answer(self._actor.counts.remote())

    async def close(self) -> None:
        """Shut the engine's processes down."""
        await self._answer(self._actor.close.remote())

    async def _answer(self, reference: Awaitable[T]) -> T:
        """Wait for a call; the one place where the death of an engine's actor gets its sentence."""
        try:
            return await reference
        except RayActorError as error:
            raise EngineError(
                f"the process of engine {self._index} died; give the same command again to go on "
                f"from the last checkpoint ({' '.join(str(error).split())})"
            ) from error
