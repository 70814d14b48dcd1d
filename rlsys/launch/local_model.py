"""Engines of a model that is only evaluated. Use the Generator inside an `async with` block."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Protocol, Self

from actors.pools import GenerationPool
from rlsys.config import EnginesConfig, GenerationConfig, ModelConfig
from rlsys.launch.engines import frozen_engines
from rlsys.launch.resources import check_local_gpus, numbered_bundles
from rlsys.launch.room import Bundle
from rlsys.launch.session import ray_session
from rlsys.types import Completion, GenerationRequest


class EvaluatedModel(Protocol):
    """Settings with a model and its engines."""

    @property
    def model(self) -> ModelConfig:
        """The model."""
        ...

    @property
    def generation(self) -> EnginesConfig:
        """Its engines."""
        ...


class LocalModel:
    """The engines of one model, in a separate Ray session."""

    def __init__(self, config: EvaluatedModel, max_length: int) -> None:
        """Prepare engines for sequences of at most `max_length` tokens; starts nothing.

        Raises ResourceError if this machine has too few GPUs.
        """
        self._config = config
        self._max_length = max_length
        self._stack = AsyncExitStack()
        self._pool = GenerationPool([])
        check_local_gpus(self._bundles())

    async def __aenter__(self) -> Self:
        """Start Ray and load the engines."""
        async with AsyncExitStack() as stack:
            stack.enter_context(ray_session(self._bundles()))
            self._pool = await stack.enter_async_context(
                frozen_engines(
                    self._config.model,
                    GenerationConfig.model_validate(self._config.generation.model_dump()),
                    self._max_length,
                    seed=0,
                )
            )
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the engines and Ray."""
        await self._stack.aclose()

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[list[Completion]]:
        """Return the n completions of every request, in request order."""
        return await self._pool.generate(requests)

    def _bundles(self) -> list[Bundle]:
        wanted = self._config.generation
        return numbered_bundles(
            "engine", wanted.engines, wanted.cpus_per_engine, wanted.gpus_per_engine
        )
