"""The engines' end of a weight sync: the WeightSink of a run.

An engine that dies during an update leaves it, and the update goes on with the others. It comes
back with an update of its own, see rlsys.launch.supervision.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from actors.handles import EngineHandle
from rlsys.errors import EngineDied
from rlsys.types import Floats, Tokens
from rlsys.weights import Bucket, BucketFile, CardBuffer, SentPart, StoredBucket

T = TypeVar("T")


class EngineSink:
    """Brings new weights to the engines that take part."""

    def __init__(self, engines: Mapping[int, EngineHandle]) -> None:
        """All `engines` take part at first; the keys are those of EngineSpec.index."""
        self._engines = dict(engines)
        self._members = set(self._engines)

    @property
    def members(self) -> frozenset[int]:
        """The engines that take part: they have the weights of the last update."""
        return frozenset(self._members)

    def alone(self, engine: int) -> EngineSink:
        """Return a sink for one engine, which may have left."""
        return EngineSink({engine: self._engines[engine]})

    def leave(self, engine: int) -> None:
        """Leave an engine out of the next updates."""
        self._members.discard(engine)

    def join(self, engine: int) -> None:
        """Let an engine take part again."""
        self._members.add(engine)

    async def join_nccl(self, host: str, port: int, workers_per_engine: int) -> None:
        """Give every worker its rank in the group whose rank 0 is the learner's first rank.

        Example: with 2 workers per engine, those of the first engine get ranks 1 and 2, those of
        the second one ranks 3 and 4.
        """
        world_size = 1 + workers_per_engine * len(self._members)
        places = {engine: place for place, engine in enumerate(sorted(self._members))}
        await self._all(
            lambda engine, handle: handle.join_nccl(
                host, port, 1 + places[engine] * workers_per_engine, world_size
            )
        )

    async def begin_update(self) -> None:
        """Stop every engine from serving and prepare it for new weights."""
        await self._all(lambda _, handle: handle.begin_update())

    async def receive(self, buckets: Sequence[Bucket], sent: Sequence[Sequence[SentPart]]) -> None:
        """Load all weights into every engine.

        Args:
            buckets: names, dtypes and shapes of their tensors.
            sent: per bucket, what every learner rank returned when it sent it; empty in a
                collective sync, where the buckets come by broadcast.
        """
        first = [ranks[0] for ranks in sent]
        match first[0] if first else None:
            case BucketFile():
                paths = [part.path for part in first if isinstance(part, BucketFile)]
                await self._all(lambda _, handle: handle.receive_files(paths))
            case StoredBucket():
                stored = [part for part in first if isinstance(part, StoredBucket)]
                await self._all(lambda _, handle: handle.receive_objects(stored))
            case CardBuffer():
                # Rank i shares its card with engine i, which alone can open the rank's buffers.
                handles = [[p.handle for p in ranks if isinstance(p, CardBuffer)] for ranks in sent]
                await self._all(
                    lambda i, handle: handle.receive_ipc([h[i] for h in handles], buckets)
                )
            case None:
                await self._all(lambda _, handle: handle.receive_nccl(buckets))

    async def finish_update(self, version: int) -> None:
        """Make the received weights live as `version`."""
        await self._all(lambda _, handle: handle.finish_update(version))

    async def verify(
        self, sequences: Sequence[Tokens], logprobs: Sequence[Floats], tolerance: float
    ) -> float:
        """Compare every engine with the learner; see GenerationActor.verify.

        Returns the largest mean gap in nats, NaN if no engine is left. Raises SyncError if an
        engine's exceeds `tolerance`.
        """
        gaps = await self._all(lambda _, handle: handle.verify(sequences, logprobs, tolerance))
        return max(gaps, default=math.nan)

    async def _all(self, call: Callable[[int, EngineHandle], Awaitable[T]]) -> list[T]:
        """Call every engine that takes part; return the results of those that live."""

        async def one(engine: int) -> list[T]:
            try:
                return [await call(engine, self._engines[engine])]
            except EngineDied:
                self.leave(engine)
                # It may only have been out of reach, and still serve with the weights before.
                self._engines[engine].kill()
                return []

        results = await asyncio.gather(*(one(engine) for engine in sorted(self._members)))
        return [value for result in results for value in result]
