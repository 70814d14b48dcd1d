"""Pools of Ray actors: all engines as one Generator and WeightSink, all graders as one Grader.

A pool is a small picklable object of handles. Every environment actor holds its own copy, and each
copy counts only the load that went through it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from actors.generation import EngineCounts
from actors.handles import EngineHandle
from rlsys.config import Policy
from rlsys.grading.compare import CachedGrader
from rlsys.types import Completion, Floats, GenerationRequest, GradingRequest, Tokens, Verdict
from rlsys.weights import Bucket, BucketFile, CardBuffer, SentPart

if TYPE_CHECKING:
    from ray.actor import ActorHandle


class GenerationPool:
    """Routes requests to engines, and brings new weights to all of them (the WeightSink of a run).

    A request that names an engine goes there; any other goes to the engine with the least work.
    """

    def __init__(self, engines: Sequence[ActorHandle]) -> None:
        """`engines` are Ray handles of GenerationActors, in the order of EngineSpec.index."""
        self._engines = [EngineHandle(index, actor) for index, actor in enumerate(engines)]
        self._load = [0] * len(self._engines)

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[list[Completion]]:
        """Return the n completions of every request, in request order.

        Requests for one engine travel in one call, because a Ray call costs as much time as many
        tokens.
        """
        routes = [self._route(r) for r in requests]
        batches = {
            engine: [r for r, e in zip(requests, routes, strict=True) if e == engine]
            for engine in set(routes)
        }
        results = dict(
            zip(
                batches,
                await asyncio.gather(
                    *(self._call(engine, batch) for engine, batch in batches.items())
                ),
                strict=True,
            )
        )
        # A batch keeps the order of the requests, so the next result of its engine is the right
        # one.
        queues = {engine: iter(result) for engine, result in results.items()}
        return [next(queues[engine]) for engine in routes]

    def _route(self, request: GenerationRequest) -> int:
        """Choose the engine and count the request's load at once, before the next one is routed."""
        engine = request.engine
        if engine is None:
            engine = min(range(len(self._load)), key=self._load.__getitem__)
        self._load[engine] += request.n * request.max_tokens
        return engine

    async def _call(self, engine: int, batch: list[GenerationRequest]) -> list[list[Completion]]:
        try:
            return await self._engines[engine].generate(batch)
        finally:
            self._load[engine] -= sum(r.n * r.max_tokens for r in batch)

    async def start(self) -> str:
        """Load every engine; return vLLM's version."""
        versions = await asyncio.gather(*(engine.start() for engine in self._engines))
        return versions[0]

    async def join_nccl(self, host: str, port: int, workers_per_engine: int) -> None:
        """Give every worker its rank in the group whose rank 0 is the learner's first rank.

        Example: with 2 workers per engine, those of engine 0 get ranks 1 and 2, those of engine 1
        ranks 3 and 4.
        """
        world_size = 1 + workers_per_engine * len(self._engines)
        await asyncio.gather(
            *(
                engine.join_nccl(host, port, 1 + index * workers_per_engine, world_size)
                for index, engine in enumerate(self._engines)
            )
        )

    async def begin_update(self) -> None:
        """Stop every engine from serving and prepare it for new weights."""
        await asyncio.gather(*(engine.begin_update() for engine in self._engines))

    async def receive(self, bucket: Bucket, sent: Sequence[SentPart]) -> None:
        """Load one bucket into every engine.

        Args:
            bucket: names, dtypes and shapes of its tensors.
            sent: what every learner rank returned when it sent the bucket; empty in a collective
                sync, where the bucket comes by broadcast.
        """
        match sent[0] if sent else None:
            case BucketFile(path=path):
                await asyncio.gather(*(engine.receive_file(path) for engine in self._engines))
            case CardBuffer():
                # Rank i shares its card with engine i, which alone can open the rank's buffer.
                handles = [part.handle for part in sent if isinstance(part, CardBuffer)]
                pairs = zip(self._engines, handles, strict=True)
                await asyncio.gather(*(engine.receive_ipc(h, bucket) for engine, h in pairs))
            case None:
                await asyncio.gather(*(engine.receive_nccl(bucket) for engine in self._engines))

    async def finish_update(self, version: int) -> None:
        """Make the received weights live as `version`."""
        await asyncio.gather(*(engine.finish_update(version) for engine in self._engines))

    async def verify(
        self, sequences: Sequence[Tokens], logprobs: Sequence[Floats], tolerance: float
    ) -> float:
        """Compare every engine with the learner; see GenerationActor.verify.

        Returns the largest mean gap in nats. Raises SyncError if an engine's exceeds `tolerance`.
        """
        gaps = (engine.verify(sequences, logprobs, tolerance) for engine in self._engines)
        return max(await asyncio.gather(*gaps))

    async def counts(self) -> EngineCounts:
        """Prompt tokens handled so far by all engines."""
        counts = await asyncio.gather(*(engine.counts() for engine in self._engines))
        return EngineCounts(
            prompt_tokens=sum(c.prompt_tokens for c in counts),
            cached_tokens=sum(c.cached_tokens for c in counts),
        )

    async def close(self) -> None:
        """Shut every engine down."""
        await asyncio.gather(*(engine.close() for engine in self._engines))


class GradingPool:
    """Spreads hard comparisons over grading actors; easy ones are settled in the caller."""

    def __init__(
        self, graders: Sequence[ActorHandle], *, max_characters: int, policy: Policy = "rlsys"
    ) -> None:
        """`graders` are Ray handles of GradingActors; longer answers than the limit are INVALID."""
        self._graders = list(graders)
        self._turn = 0
        self._cached = CachedGrader(self._grade_hard, max_characters=max_characters, policy=policy)

    async def grade(self, requests: Sequence[GradingRequest]) -> list[Verdict]:
        """Return one verdict per request, in order."""
        return await self._cached.grade(requests)

    async def _grade_hard(self, requests: list[GradingRequest]) -> list[Verdict]:
        """Send one comparison per call, so that a slow text delays no other grader's work."""
        first, self._turn = self._turn, self._turn + len(requests)
        calls = [
            self._graders[(first + i) % len(self._graders)].grade.remote([request])
            for i, request in enumerate(requests)
        ]
        return [verdict for (verdict,) in await asyncio.gather(*calls)]
