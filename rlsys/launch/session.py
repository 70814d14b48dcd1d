"""A Ray session: joins the cluster it runs in, or starts a local one that is large enough."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from math import ceil
from typing import Any, NamedTuple, TypeVar

import ray

from actors.vllm_settings import engine_environment
from rlsys.config import EnginesConfig, LearnerConfig, RunConfig, SftConfig
from rlsys.errors import RlsysError
from rlsys.launch.resources import (
    Wanted,
    bundles,
    check_resources,
    engine_bundle,
    placed_bundles,
    reflection_bundle,
)
from rlsys.launch.worker import RUN_MARK, prepare_worker
from rlsys.signals import (
    STOP_SIGNALS,
    call_on_signals,
    children_in_own_session,
    interrupt_on_signals,
)

T = TypeVar("T")

RayOptions = dict[str, object]
"""Options of a Ray actor: resources, environment variables, place."""


@contextmanager
def ray_session(config: Wanted) -> Iterator[None]:
    """Connect to Ray for the time of the block, and check that the run fits.

    With RAY_ADDRESS set (inside a cluster or a submitted job) that cluster is joined. Otherwise a
    local one is started with as many logical cores as the run needs, whatever the machine has, so
    that a laptop with two cores can run one process of each kind.

    Raises:
        ResourceError: one of the run's bundles fits on no node.
    """
    _connect(config)
    interrupt_on_signals()  # ray.init has put a handler of its own for SIGTERM
    try:
        check_resources(config, [dict(n["Resources"]) for n in ray.nodes() if n["Alive"]])
        yield
    finally:
        ray.shutdown()


def _connect(config: Wanted) -> None:
    options: dict[str, Any] = {
        "log_to_driver": os.environ.get("RLSYS_ACTOR_LOGS", "0") == "1",
        "runtime_env": {
            "env_vars": {RUN_MARK: str(os.getpid())},
            "worker_process_setup_hook": prepare_worker,
        },
    }
    try:
        if os.environ.get("RAY_ADDRESS", "local") == "local":
            cpus = ceil(sum(bundle.cpus for bundle in bundles(config)))
            with children_in_own_session():
                ray.init(address="local", num_cpus=cpus, include_dashboard=False, **options)
        else:
            ray.init(**options)
    except SystemExit:  # what Ray's handler for SIGTERM raises
        raise KeyboardInterrupt from None


class Placement(NamedTuple):
    """Ray options of every actor that has a place in the placement group."""

    ranks: list[RayOptions]
    engines: list[RayOptions]
    reflection: list[RayOptions]


async def reserve_placement(config: RunConfig | SftConfig) -> Placement:
    """Reserve the placement group; return the options that put every actor into its bundle."""
    from ray.util.placement_group import placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    wanted = [
        {"CPU": bundle.cpus} | ({"GPU": bundle.gpus} if bundle.gpus else {})
        for bundle in placed_bundles(config)
    ]
    # PACK: on as few nodes as possible, because weights go from ranks to engines after each step.
    group = placement_group(wanted, strategy="PACK")
    await group.ready()

    def options(index: int, cpus: float, gpus: float, variables: dict[str, str]) -> RayOptions:
        return {
            "num_cpus": cpus,
            "num_gpus": gpus,
            "runtime_env": {"env_vars": variables},
            "scheduling_strategy": PlacementGroupSchedulingStrategy(
                placement_group=group, placement_group_bundle_index=index
            ),
        }

    learner = config.learner
    variables = learner_environment(learner)
    ranks = [
        options(i, learner.cpus_per_rank, learner.gpus_per_rank, variables)
        for i in range(learner.ranks)
    ]
    if isinstance(config, SftConfig):
        return Placement(ranks, [], [])

    def engines(wanted: EnginesConfig, bundle: Callable[[int], int]) -> list[RayOptions]:
        cpus, gpus = wanted.cpus_per_engine, wanted.gpus_per_engine
        variables = engine_environment(on_gpu=gpus > 0, threads=int(cpus))
        return [options(bundle(i), cpus, gpus, variables) for i in range(wanted.engines)]

    revision = config.revision
    reflection = None if revision is None else revision.generation
    return Placement(
        ranks,
        engines(config.generation, partial(engine_bundle, config)),
        [] if reflection is None else engines(reflection, partial(reflection_bundle, config)),
    )


def learner_environment(config: LearnerConfig) -> dict[str, str]:
    """Environment variables of a learner rank."""
    if config.gpus_per_rank:
        return {"DS_ACCELERATOR": "cuda"}
    return {
        "DS_ACCELERATOR": "cpu",
        "OMP_NUM_THREADS": str(max(1, int(config.cpus_per_rank))),
        "TORCHDYNAMO_DISABLE": "1",
    }


def run(main: Coroutine[object, object, T]) -> T:
    """Run `main` as asyncio.run does, but raise the cause inside an exception group by itself."""
    try:
        return asyncio.run(_with_signals(main))
    except BaseExceptionGroup as group:
        raise cause(group) from group
    except ray.exceptions.RayActorError as error:
        raise _death(error) from error


async def _with_signals(main: Coroutine[object, object, T]) -> T:
    """Await `main`; the first stop signal cancels it, unless it handles them itself."""
    task = asyncio.current_task()
    assert task is not None
    stopped = asyncio.Event()

    def stop() -> None:
        if not stopped.is_set():  # a second signal must not cancel what the first one cleans up
            stopped.set()
            task.cancel()

    call_on_signals(stop)
    try:
        return await main
    except asyncio.CancelledError:
        if stopped.is_set():
            raise KeyboardInterrupt from None
        raise
    finally:
        # Before the event loop closes: it would put the system's default in the place of every
        # handler that `main` added, and a second signal would kill the command while it cleans up.
        loop = asyncio.get_running_loop()
        for sign in STOP_SIGNALS:
            loop.remove_signal_handler(sign)
        interrupt_on_signals()


def cause(error: BaseException) -> BaseException:
    """Return the first RlsysError in a group, or its first error if there is none."""
    while isinstance(error, BaseExceptionGroup):
        ours, _ = error.split(RlsysError)
        error = (ours or error).exceptions[0]
    return _death(error) if isinstance(error, ray.exceptions.RayActorError) else error


def _death(error: ray.exceptions.RayActorError) -> RlsysError:
    """Return Ray's error about a dead process as one sentence with the remedy."""
    return RlsysError(
        "a process of the run died; give the same command again to go on from the last checkpoint "
        f"({' '.join(str(error).split())})"
    )
