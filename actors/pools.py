"""Typed pools over Ray actors: the only place besides launch where `.remote` appears here.

A pool is a small picklable object of handles; every environment actor holds its own copy and keeps
its own view of the load.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from ray.exceptions import RayActorError

from actors.generation import Canary, EngineCounts
from rlsys.errors import EngineError
from rlsys.grading.compare import CachedGrader
from rlsys.types import Completion, GenerationRequest, GradingRequest, Verdict


class GenerationPool:
    """Routes requests to engines: to the named one, else to the one with the least work here."""

    def __init__(self, engines: Sequence[Any]) -> None:
        self._engines = list(engines)
        self._load = [0] * len(self._engines)

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[list[Completion]]:
        """Return the n completions of every request, in request order.

        Requests for one engine travel in one call: Ray's cost per call is that of many tokens.
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
        queues = {engine: iter(result) for engine, result in results.items()}
        return [next(queues[engine]) for engine in routes]

    def _route(self, request: GenerationRequest) -> int:
        engine = request.engine
        if engine is None:
            engine = min(range(len(self._load)), key=self._load.__getitem__)
        self._load[engine] += request.n * request.max_tokens
        return engine

    async def _call(self, engine: int, batch: list[GenerationRequest]) -> list[list[Completion]]:
        try:
            result: list[list[Completion]] = await self._ask(engine, "generate", batch)
        finally:
            self._load[engine] -= sum(r.n * r.max_tokens for r in batch)
        return result

    async def start(self) -> str:
        """Load every engine; return vLLM's version."""
        versions: list[str] = await self._all("start")
        return versions[0]

    async def begin_update(self) -> None:
        """Close every engine's gate and open the reload."""
        await self._all("begin_update")

    async def call_workers(self, method: str, *args: Any) -> None:
        """Call a WeightReceiver method in every worker of every engine."""
        await self._all("call_workers", method, *args)

    async def call_each(self, calls: Sequence[tuple[Any, ...]]) -> None:
        """Make call i, a WeightReceiver method and its arguments, in the workers of engine i."""
        await asyncio.gather(*(self._ask(i, "call_workers", *call) for i, call in enumerate(calls)))

    async def join_nccl(self, host: str, port: int, workers_per_engine: int) -> None:
        """Give every worker its rank in the learner's group: 1, 2, … in engine order."""
        world_size = 1 + workers_per_engine * len(self._engines)
        await asyncio.gather(
            *(
                self._ask(
                    i,
                    "call_workers",
                    "rlsys_join_nccl",
                    host,
                    port,
                    1 + i * workers_per_engine,
                    world_size,
                )
                for i in range(len(self._engines))
            )
        )

    async def finish_update(self, version: int) -> None:
        """Make the received weights live as `version`."""
        await self._all("finish_update", version)

    async def verify(self, canary: Canary) -> float:
        """Canary on every engine; return the largest mean gap in nats. Raises SyncError."""
        return float(max(await self._all("verify", canary)))

    async def counts(self) -> EngineCounts:
        """Tokens handled so far by all engines."""
        every: list[EngineCounts] = await self._all("counts")
        return EngineCounts(
            prompt_tokens=sum(c.prompt_tokens for c in every),
            cached_tokens=sum(c.cached_tokens for c in every),
            sampled_tokens=sum(c.sampled_tokens for c in every),
        )

    async def close(self) -> None:
        """Shut every engine down."""
        await self._all("close")

    async def _all(self, method: str, *args: Any) -> list[Any]:
        calls = (self._ask(engine, method, *args) for engine in range(len(self._engines)))
        return list(await asyncio.gather(*calls))

    async def _ask(self, engine: int, method: str, *args: Any) -> Any:
        """Call one engine's actor. Raises EngineError if its process is gone."""
        try:
            return await getattr(self._engines[engine], method).remote(*args)
        except RayActorError as error:
            raise EngineError(
                f"the process of engine {engine} died; give the same command again to go on from "
                f"the last checkpoint ({' '.join(str(error).split())})"
            ) from error


class GradingPool:
    """Spreads hard comparisons over grading actors; easy ones never leave the caller."""

    def __init__(self, graders: Sequence[Any], *, max_characters: int) -> None:
        self._graders = list(graders)
        self._turn = 0
        self._cached = CachedGrader(self._grade_hard, max_characters=max_characters)

    async def grade(self, requests: Sequence[GradingRequest]) -> list[Verdict]:
        """Return one verdict per request, in order."""
        return await self._cached.grade(requests)

    async def _grade_hard(self, requests: list[GradingRequest]) -> list[Verdict]:
        """One call a comparison, so that a slow text delays no other grader's work."""
        first, self._turn = self._turn, self._turn + len(requests)
        calls = [
            self._graders[(first + i) % len(self._graders)].grade.remote([request])
            for i, request in enumerate(requests)
        ]
        return [verdict for (verdict,) in await asyncio.gather(*calls)]
