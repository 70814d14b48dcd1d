"""A Ray session: joins the cluster it runs in, or starts a local one that holds what is asked."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import ray

from actors.generation import engine_environment
from rlsys.config import GenerationConfig, LearnerConfig, RunConfig
from rlsys.errors import RlsysError

T = TypeVar("T")

SERVICE_CPUS = 1.0
"""Logical cores of an environment or grading actor."""


@contextmanager
def ray_session(local_cpus: float) -> Iterator[None]:
    """Connect to Ray for the time of the block.

    With RAY_ADDRESS set (inside a cluster or a submitted job) that cluster is joined; otherwise a
    local one is started with at least `local_cpus` logical cores, so that a laptop with two cores
    holds one process of each kind.
    """
    quiet = {"log_to_driver": os.environ.get("RLSYS_ACTOR_LOGS", "0") == "1"}
    if os.environ.get("RAY_ADDRESS", "local") == "local":
        cpus = max(int(local_cpus + 0.999), os.cpu_count() or 1)
        ray.init(address="local", num_cpus=cpus, include_dashboard=False, **quiet)
    else:
        ray.init(**quiet)
    try:
        yield
    finally:
        ray.shutdown()


def nodes() -> list[dict[str, float]]:
    """Resources of every live node."""
    return [dict(n["Resources"]) for n in ray.nodes() if n["Alive"]]


def learner_bundle(config: LearnerConfig) -> dict[str, float]:
    """Resources of one learner rank."""
    return _bundle(config.cpus_per_rank, config.gpus_per_rank)


def engine_bundle(config: GenerationConfig) -> dict[str, float]:
    """Resources of one engine."""
    return _bundle(config.cpus_per_engine, config.gpus_per_engine)


def colocated(config: RunConfig) -> bool:
    """True if rank i and engine i share card i."""
    return 0 < config.learner.gpus_per_rank < 1 and 0 < config.generation.gpus_per_engine < 1


def bundles(config: RunConfig) -> list[dict[str, float]]:
    """The placement group: shared cards first, or ranks then engines."""
    learner, engine = learner_bundle(config.learner), engine_bundle(config.generation)
    ranks, engines = config.learner.ranks, config.generation.engines
    if colocated(config):
        shared = {"CPU": learner["CPU"] + engine["CPU"], "GPU": 1.0}
        return [shared] * max(ranks, engines)
    return [learner] * ranks + [engine] * engines


async def place_ranks(config: LearnerConfig) -> list[dict[str, Any]]:
    """Reserve cards for a learner alone; return Ray options for every rank."""
    bundle = learner_bundle(config)
    options = await _reserve([bundle] * config.ranks)
    return [options(i, bundle, learner_environment(config)) for i in range(config.ranks)]


async def place(config: RunConfig) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Reserve the bundles; return Ray options for every rank and for every engine."""
    options = await _reserve(bundles(config))
    learner, generation = config.learner, config.generation
    first_engine = 0 if colocated(config) else learner.ranks
    rank_variables = learner_environment(learner)
    engine_variables = engine_environment(
        on_gpu=generation.gpus_per_engine > 0, threads=int(generation.cpus_per_engine)
    )
    ranks = [options(i, learner_bundle(learner), rank_variables) for i in range(learner.ranks)]
    engines = [
        options(first_engine + i, engine_bundle(generation), engine_variables)
        for i in range(generation.engines)
    ]
    return ranks, engines


async def _reserve(
    wanted: list[dict[str, float]],
) -> Callable[[int, dict[str, float], dict[str, str]], dict[str, Any]]:
    """Wait for the bundles; return a maker of actor options from bundle, resources, variables."""
    from ray.util.placement_group import placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    group = placement_group(wanted, strategy="PACK")
    await group.ready()

    def options(
        bundle: int, resources: dict[str, float], variables: dict[str, str]
    ) -> dict[str, Any]:
        return {
            "num_cpus": resources["CPU"],
            "num_gpus": resources.get("GPU", 0),
            "runtime_env": {"env_vars": variables},
            "scheduling_strategy": PlacementGroupSchedulingStrategy(
                placement_group=group, placement_group_bundle_index=bundle
            ),
        }

    return options


def learner_environment(config: LearnerConfig) -> dict[str, str]:
    """Environment variables of a learner rank."""
    if config.gpus_per_rank:
        return {"DS_ACCELERATOR": "cuda"}
    return {
        "DS_ACCELERATOR": "cpu",
        "OMP_NUM_THREADS": str(max(1, int(config.cpus_per_rank))),
        "TORCHDYNAMO_DISABLE": "1",
    }


def total_cpus(config: RunConfig) -> float:
    """Logical cores of all actors of a run."""
    services = config.rollout.environment_actors + config.grading.actors
    return sum(b["CPU"] for b in bundles(config)) + services * SERVICE_CPUS


def _bundle(cpus: float, gpus: float) -> dict[str, float]:
    return {"CPU": cpus} | ({"GPU": gpus} if gpus else {})


def run(main: Coroutine[Any, Any, T]) -> T:
    """asyncio.run, with the error that a group of tasks hides brought to the surface."""
    try:
        return asyncio.run(main)
    except BaseExceptionGroup as group:
        raise _cause(group) from group
    except ray.exceptions.RayActorError as error:
        raise _death(error) from error


def _cause(error: BaseException) -> BaseException:
    """The first of our own errors in a group, else its first leaf."""
    while isinstance(error, BaseExceptionGroup):
        ours, _ = error.split(RlsysError)
        error = (ours or error).exceptions[0]
    return _death(error) if isinstance(error, ray.exceptions.RayActorError) else error


def _death(error: ray.exceptions.RayActorError) -> RlsysError:
    """Ray's words on a dead process as one sentence with the remedy."""
    return RlsysError(
        "a process of the run died; give the same command again to go on from the last checkpoint "
        f"({' '.join(str(error).split())})"
    )
