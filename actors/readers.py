"""Frozen engines of a second model, whose death costs what it would have said and never the run.

A reader that dies is started again by Ray, and loads its model when it is next asked. Until then,
where that fails, and when it is too slow, who asks gets an EngineError and goes on without.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from ray.exceptions import NodeDiedError, OutOfMemoryError, RayActorError, WorkerCrashedError

from actors.generation import EngineSpec, GenerationActor
from rlsys.errors import EngineError
from rlsys.types import Completion, GenerationRequest

DEATHS: Final = (RayActorError, WorkerCrashedError, NodeDiedError, OutOfMemoryError)
"""What Ray raises in the place of an answer; any other error is a mistake of ours."""
RELOAD_PAUSE_S: Final = 30.0
"""After a model that could not be loaded again; what is asked meanwhile fails at once."""


class ReaderActor(GenerationActor):
    """A generation actor that loads its engine as often as it has lost it."""

    def __init__(self, spec: EngineSpec) -> None:
        super().__init__(spec)
        self._loading = asyncio.Lock()
        self._reload_after = 0.0

    async def start(self) -> str:
        """Load the engine unless it is there; return vLLM's version."""
        async with self._loading:
            return await super().start() if self._engine is None else ""

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[list[Completion]]:
        """Return the n completions of every request; raises EngineError without an engine."""
        await self._load_again()
        engine = self._engine
        try:
            return await super().generate(requests)
        except EngineError:
            if self._engine is engine:  # the first of all requests in flight that hears of it
                await self._drop()
            raise

    async def _drop(self) -> None:
        """Forget an engine that is of no more use, whether or not it still shuts down."""
        with suppress(Exception):
            await self.close()

    async def _load_again(self) -> None:
        """Load the engine unless it is there; a failure costs the asking, and not the run."""
        async with self._loading:
            if self._engine is not None:
                return
            if time.monotonic() < self._reload_after:
                raise EngineError("the last attempt to load it again failed")
            try:
                await super().start()
            except Exception as error:  # a card that is still full, a process that was killed
                self._reload_after = time.monotonic() + RELOAD_PAUSE_S
                await self._drop()
                raise EngineError(f"it could not be loaded again ({error})") from error


class ReaderPool:
    """Asks the reader with the least work here, and the others if it is gone."""

    def __init__(self, readers: Sequence[Any], *, timeout_s: float) -> None:
        self._readers = list(readers)
        self._load = [0] * len(self._readers)
        self._timeout_s = timeout_s

    async def start(self) -> None:
        """Load every engine."""
        await asyncio.gather(*(reader.start.remote() for reader in self._readers))

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[list[Completion]]:
        """Return the n completions of every request, in request order.

        Raises:
            EngineError: no reader answered in time.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._first_that_answers(requests)
        except TimeoutError:
            raise EngineError(f"no reader answered within {self._timeout_s:g} s") from None

    async def _first_that_answers(
        self, requests: Sequence[GenerationRequest]
    ) -> list[list[Completion]]:
        work = sum(len(r.token_ids) + r.n * r.max_tokens for r in requests)
        error: Exception | None = None
        for reader in sorted(range(len(self._load)), key=self._load.__getitem__):
            self._load[reader] += work
            try:
                result: list[list[Completion]] = await self._readers[reader].generate.remote(
                    requests
                )
                return result
            except (EngineError, *DEATHS) as failure:
                error = failure
            finally:
                self._load[reader] -= work
        raise EngineError(f"no reader is alive ({' '.join(str(error).split())})") from error

    async def close(self) -> None:
        """Shut every engine down."""
        await asyncio.gather(*(reader.close.remote() for reader in self._readers))
