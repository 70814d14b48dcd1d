"""Starts engines as Ray actors, from the settings of a model and of its generation."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import ray

from actors.generation import GenerationActor
from actors.pools import GenerationPool
from actors.reflection import ReflectionActor, ReflectionPool
from actors.vllm_settings import EngineSpec, engine_environment
from rlsys.config import EnginesConfig, GenerationConfig, ModelConfig, RevisionConfig
from rlsys.launch.homes import StartEngine
from rlsys.launch.placement import RayOptions
from rlsys.launch.supervision import EngineSupervisor
from rlsys.tokenization.model_folder import resolve_model_path
from rlsys.types import Tokens

if TYPE_CHECKING:
    from ray.actor import ActorHandle

CLOSE_SECONDS: Final = 20.0
"""How long actors may take to end by themselves before Ray kills them."""


MAX_CALLS: Final = 100_000
"""Calls that an engine's actor takes at once."""


def engine_pool(
    model: ModelConfig,
    generation: GenerationConfig,
    max_length: int,
    seed: int,
    options: Sequence[RayOptions],
    *,
    canary: tuple[Tokens, ...] = (),
) -> tuple[GenerationPool, StartEngine]:
    """Start one actor per entry of `options`; no model is loaded yet.

    Ray starts an actor again whenever it dies, on another node if it must. It serves again when
    rlsys.launch.supervision has brought it up to date.

    Args:
        model: the model that every engine serves.
        generation: settings of the engines.
        max_length: largest number of tokens of a whole sequence.
        seed: for samples without a seed of their own.
        options: Ray options of each actor, which decide where it runs.
        canary: the sequences that a weight sync checks; see EngineSpec.

    Returns:
        The pool, and a function that starts an engine with other options after its actor ended.
    """
    actor, pool_name = ray.remote(GenerationActor), uuid4().hex

    def name(index: int) -> str:
        return f"engine-{index}-{pool_name}"

    def start(index: int, options: RayOptions) -> ActorHandle:
        # Without a limit of restarts here: the supervisor counts, and a process that loads no
        # model is cheap. Calls that wait for an update must not keep heartbeats out.
        return actor.options(
            name=name(index), max_restarts=-1, max_concurrency=MAX_CALLS, **options
        ).remote(_spec(model, generation, max_length, seed, index, canary))

    pool = GenerationPool(
        [start(index, place) for index, place in enumerate(options)],
        names=[name(index) for index in range(len(options))],
        min_engines=generation.min_engines,
        patience_s=generation.restart_s + generation.heartbeat_s,
    )
    return pool, start


def reflection_pool(
    revision: RevisionConfig, max_length: int, seed: int, options: Sequence[RayOptions]
) -> ReflectionPool:
    """Do the same for engines of the reflection model, which Ray starts again when they die."""
    actor = ray.remote(ReflectionActor)
    engines = [
        actor.options(max_restarts=revision.restarts, **place_options).remote(
            _spec(revision.model, revision.generation, max_length, seed, index)
        )
        for index, place_options in enumerate(options)
    ]
    return ReflectionPool(engines, timeout_s=revision.timeout_s)


def _spec(
    model: ModelConfig,
    wanted: EnginesConfig,
    max_length: int,
    seed: int,
    index: int,
    canary: tuple[Tokens, ...] = (),
) -> EngineSpec:
    return EngineSpec(
        index=index,
        model=str(resolve_model_path(model.path)),
        dtype=model.dtype,
        max_length=max_length,
        max_sequences=wanted.max_sequences,
        tensor_parallel=wanted.tensor_parallel,
        on_gpu=wanted.gpus_per_engine > 0,
        gpu_memory_utilization=wanted.gpu_memory_utilization,
        kv_cache_bytes=wanted.kv_cache_mib << 20 if wanted.kv_cache_mib else None,
        enforce_eager=(
            not wanted.gpus_per_engine if wanted.enforce_eager is None else wanted.enforce_eager
        ),
        seed=seed,
        kv_cache_dtype=wanted.kv_cache_dtype,
        prefix_caching=wanted.prefix_caching,
        max_batched_tokens=wanted.max_batched_tokens,
        canary=canary,
    )


@asynccontextmanager
async def frozen_engines(
    model: ModelConfig, generation: GenerationConfig, max_length: int, seed: int
) -> AsyncIterator[GenerationPool]:
    """Load the engines of a model that is not trained, and close them when the block ends.

    Engines that die meanwhile are started again.
    """
    variables = engine_environment(
        on_gpu=generation.gpus_per_engine > 0, threads=int(generation.cpus_per_engine)
    )
    options: RayOptions = {
        "num_cpus": generation.cpus_per_engine,
        "num_gpus": generation.gpus_per_engine,
        "runtime_env": {"env_vars": variables},
    }
    pool, _ = engine_pool(model, generation, max_length, seed, [options] * generation.engines)
    supervisor = EngineSupervisor(pool, generation, tell=logging.getLogger("rlsys").warning)
    watching: asyncio.Task[None] | None = None
    try:
        await pool.start()
        watching = asyncio.create_task(supervisor.watch(None))
        yield pool
    finally:
        if watching is not None:
            watching.cancel()
        await close_within_limit(pool.close())


async def close_within_limit(closing: Coroutine[object, object, None]) -> None:
    """Wait at most CLOSE_SECONDS for actors to end; Ray kills those that are dead or too slow.

    Errors are dropped: this runs while a run ends, often because of an error that is worth more.
    """
    with suppress(Exception):
        async with asyncio.timeout(CLOSE_SECONDS):
            await closing
