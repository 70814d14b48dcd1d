"""Engines of the frozen reflection model: when one dies, the run goes on without its revisions.

Ray starts a dead engine's actor again, and the actor loads the model at its next request. A request
that meets a dead engine, an engine that fails to load, or one that is too slow raises EngineError,
and the caller keeps the original thought.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from ray.exceptions import NodeDiedError, OutOfMemoryError, RayActorError, WorkerCrashedError

from actors.engine_state import slowest
from actors.generation import GenerationActor
from actors.vllm_settings import EngineSpec
from rlsys.errors import EngineError
from rlsys.types import Completion, GenerationRequest

DEATHS: Final = (RayActorError, WorkerCrashedError, NodeDiedError, OutOfMemoryError)
"""What Ray raises when an actor or its node died; any other error is a bug and ends the run."""
RELOAD_PAUSE_S: Final = 30.0
"""Seconds between two attempts to load the model; requests in between fail at once."""


class ReflectionActor(GenerationActor):
    """A generation actor that loads its engine again when it has lost it."""

    def __init__(self, spec: EngineSpec) -> None:
        super().__init__(spec)
        self._loading = asyncio.Lock()
        self._reload_after = 0.0

    async def start(self, serve: bool = True) -> dict[str, float]:
        """Load the engine unless it is there; return the seconds of what was done."""
        async with self._loading:
            return await super().start(serve) if self._engine is None else {}

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[list[Completion]]:
        """Return the n completions of every request; raises EngineError without an engine."""
        await self._load_again()
        engine = self._engine
        try:
            return await super().generate(requests)
        except EngineError:
            # All requests in flight fail together; only the first of them drops the engine.
            if self._engine is engine:
                await self._drop()
            raise

    async def _drop(self) -> None:
        """Forget a failed engine, whether or not it still shuts down."""
        with suppress(Exception):
            await self.close()

    async def _load_again(self) -> None:
        """Load the engine unless it is there; raises EngineError if that fails."""
        async with self._loading:
            if self._engine is not None:
                return
            if time.monotonic() < self._reload_after:
                raise EngineError("the last attempt to load it again failed")
            try:
                await super().start(serve=True)
            except Exception as error:  # a card that is still full, a process that was killed
                self._reload_after = time.monotonic() + RELOAD_PAUSE_S
                await self._drop()
                raise EngineError(f"it could not be loaded again ({error})") from error


class ReflectionPool:
    """Asks the engine with the least work of this pool, then the others if that one is dead."""

    def __init__(self, engines: Sequence[Any], *, timeout_s: float) -> None:
        self._engines = list(engines)
        self._load = [0] * len(self._engines)
        self._timeout_s = timeout_s

    async def start(self) -> dict[str, float]:
        """Load every engine; return the seconds of the steps of the slowest one."""
        seconds: list[dict[str, float]] = await asyncio.gather(
            *(engine.start.remote() for engine in self._engines)
        )
        return slowest(seconds)

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[list[Completion]]:
        """Return the n completions of every request, in request order.

        Raises:
            EngineError: no engine answered in time.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._first_that_answers(requests)
        except TimeoutError:
            raise EngineError(
                f"no reflection engine answered within {self._timeout_s:g} s"
            ) from None

    async def _first_that_answers(
        self, requests: Sequence[GenerationRequest]
    ) -> list[list[Completion]]:
        work = sum(len(r.token_ids) + r.n * r.max_tokens for r in requests)
        error: Exception | None = None
        for engine in sorted(range(len(self._load)), key=self._load.__getitem__):
            self._load[engine] += work
            try:
                result: list[list[Completion]] = await self._engines[engine].generate.remote(
                    requests
                )
                return result
            except (EngineError, *DEATHS) as failure:
                error = failure
            finally:
                self._load[engine] -= work
        raise EngineError(
            f"no reflection engine is alive ({' '.join(str(error).split())})"
        ) from error

    async def close(self) -> None:
        """Shut every engine down."""
        await asyncio.gather(*(engine.close.remote() for engine in self._engines))
