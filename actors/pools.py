"""Pools of Ray actors: all engines as one Generator, all graders as one Grader.

A pool is a small picklable object of handles. Every environment actor holds its own copy, and each
copy counts only the load that went through it.
"""

from __future__ import annotations

import asyncio
import copy
import math
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from actors.engine_state import EngineCounts, slowest
from actors.handles import EngineHandle
from actors.sink import EngineSink
from rlsys.config import Policy
from rlsys.errors import EngineDied, EngineError
from rlsys.grading.compare import CachedGrader
from rlsys.types import Completion, GenerationRequest, GradingRequest, Verdict

if TYPE_CHECKING:
    from ray.actor import ActorHandle

PROBE_PAUSE_S: Final = 1.0
"""Between two questions to an engine that died."""
PROBE_LIMIT_S: Final = 10.0
"""How long one question may take."""


class GenerationPool:
    """Routes requests to engines.

    A request that names an engine goes there; any other goes to the engine with the least work. The
    requests of an engine that died go to the others, with the same seeds and so with the same
    results. No requests are sent to it until it serves again.
    """

    def __init__(
        self,
        engines: Sequence[ActorHandle],
        *,
        names: Sequence[str] | None = None,
        min_engines: int = 1,
        patience_s: float = 600.0,
    ) -> None:
        """Route to `engines`, Ray handles of GenerationActors in the order of EngineSpec.index.

        Args:
            engines: the handles.
            names: of the actors, if they have names; see EngineHandle.
            min_engines: with fewer engines, requests wait until one serves again.
            patience_s: how long they wait.
        """
        self.engines = [
            EngineHandle(index, actor, None if names is None else names[index])
            for index, actor in enumerate(engines)
        ]
        self.sink = EngineSink(dict(enumerate(self.engines)))
        self.rerouted = 0
        """Requests that had to be sent again."""
        self._load = [0] * len(self.engines)
        self._first = 0
        """The engine that gets a request if all have the same load."""
        self._affinities: dict[int, list[int]] = {}
        """Per GenerationRequest.affinity, the engine of each request that is under way."""
        self._min_engines = min_engines
        self._patience_s = patience_s
        self._down: dict[int, asyncio.Task[None]] = {}
        """Engines that died, with the task that waits until they serve again."""

    def part(self, part: int, parts: int) -> GenerationPool:
        """Return a pool of the same engines for one of `parts` senders; call it before any request.

        Every sender counts its own load only. Each begins at another engine, because all of them
        would send to the first engines otherwise, and the last ones would stay idle.
        """
        pool = copy.copy(self)
        pool._load, pool._affinities, pool._down = [0] * len(self.engines), {}, {}
        pool._first = part * len(self.engines) // parts
        return pool

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[list[Completion]]:
        """Return the n completions of every request, in request order.

        Requests for one engine travel in one call, because a Ray call costs as much time as many
        tokens.

        Raises:
            EngineError: for `patience_s` seconds there were fewer engines than `min_engines`.
        """
        results: dict[int, list[Completion]] = {}
        waiting = list(range(len(requests)))
        while waiting:
            await self._enough_engines()
            batches: dict[int, list[int]] = {}
            for place in waiting:
                batches.setdefault(self._route(requests[place]), []).append(place)
            calls = [self._call(e, [requests[i] for i in b]) for e, b in batches.items()]
            # Most requests go to one engine, and then no further task is needed.
            answers = [await calls[0]] if len(calls) == 1 else await asyncio.gather(*calls)
            for batch, answer in zip(batches.values(), answers, strict=True):
                if answer is not None:
                    results.update(zip(batch, answer, strict=True))
            waiting = [place for place in waiting if place not in results]
            self.rerouted += len(waiting)
        return [results[place] for place in range(len(requests))]

    def _route(self, request: GenerationRequest) -> int:
        """Choose the engine and count the request's load at once, before the next one is routed."""
        engine = request.engine
        if request.affinity is not None:
            engines = self._affinities.setdefault(request.affinity, [])
            engine = engines[-1] if engines else engine
        if engine is None or engine in self._down:
            engine = self._least_loaded()
        self._load[engine] += request.n * request.max_tokens
        if request.affinity is not None:
            engines.append(engine)
        return engine

    def _unroute(self, request: GenerationRequest, engine: int) -> None:
        """Take back what `_route` counted."""
        self._load[engine] -= request.n * request.max_tokens
        if request.affinity is not None:
            engines = self._affinities[request.affinity]
            engines.remove(engine)
            if not engines:
                del self._affinities[request.affinity]

    def _least_loaded(self) -> int:
        """Return the first living engine with the least load, counted from `_first` on."""
        loads: list[float] = [*self._load[self._first :], *self._load[: self._first]]
        for engine in self._down:
            loads[engine - self._first] = math.inf
        # Two passes of list methods, because this runs for every group over all engines.
        return (self._first + loads.index(min(loads))) % len(loads)

    async def _call(
        self, engine: int, batch: list[GenerationRequest]
    ) -> list[list[Completion]] | None:
        """Return the results of one engine, or None if it died."""
        try:
            return await self.engines[engine].generate(batch)
        except EngineDied:
            if engine not in self._down:
                self._down[engine] = asyncio.create_task(self._until_it_serves(engine))
            return None
        finally:
            for request in batch:
                self._unroute(request, engine)

    async def _enough_engines(self) -> None:
        """Wait until `min_engines` serve; at least one, or there would be no route."""
        waited_from = time.monotonic()
        while len(self.engines) - len(self._down) < self._min_engines:
            left = waited_from + self._patience_s - time.monotonic()
            if left <= 0:
                raise EngineError(
                    f"for {self._patience_s:g} s fewer than generation.min_engines "
                    f"{self._min_engines} of {len(self.engines)} engines served; set "
                    "RLSYS_ACTOR_LOGS=1 to see why, and give the same command again to go on from "
                    "the last checkpoint"
                )
            await asyncio.wait(
                self._down.values(), timeout=left, return_when=asyncio.FIRST_COMPLETED
            )

    async def _until_it_serves(self, engine: int) -> None:
        """Ask again and again; an engine that is started again serves once it is up to date."""
        while True:
            await asyncio.sleep(PROBE_PAUSE_S)
            with suppress(EngineError, TimeoutError):
                async with asyncio.timeout(PROBE_LIMIT_S):
                    beat = await self.engines[engine].heartbeat()
                if beat.serving:
                    break
        del self._down[engine]

    async def start(self) -> dict[str, float]:
        """Load every engine with the weights of the model folder.

        Returns the seconds of `import`, `load` and `compile` of the slowest engine.
        """
        seconds = await asyncio.gather(*(engine.start(serve=True) for engine in self.engines))
        return slowest(seconds)

    async def counts(self) -> EngineCounts:
        """Sums of the totals so far over the engines that take part in weight updates.

        Others are not asked: one that waits for a node with room would answer only then, and the
        report of every step, which needs these numbers, would wait for it.
        """

        async def count(engine: EngineHandle) -> EngineCounts:
            try:
                return await engine.counts()
            except EngineDied:
                return EngineCounts()

        taking_part = [self.engines[engine] for engine in self.sink.members]
        counts = await asyncio.gather(*map(count, taking_part))
        return EngineCounts(
            prompt_tokens=sum(c.prompt_tokens for c in counts),
            cached_tokens=sum(c.cached_tokens for c in counts),
            busy_s=sum(c.busy_s for c in counts),
        )

    async def close(self) -> None:
        """Shut every engine down; also those that live beside one that is dead."""
        await asyncio.gather(*(engine.close() for engine in self.engines), return_exceptions=True)


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
