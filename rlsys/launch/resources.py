"""Resources that the processes of a run need, and the check that the machines have them.

A rank and an engine that both need a fraction of a GPU share a bundle. So do an engine and an
engine of the reflection model. Every other process has a separate bundle. If a bundle fits on no
node, Ray waits without end; so this is checked before the bundles are requested.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from math import inf

from rlsys.config import (
    EnginesConfig,
    GenerationConfig,
    LearnerConfig,
    NodesConfig,
    RunConfig,
    SftConfig,
)
from rlsys.errors import ConfigError, ResourceError
from rlsys.launch.room import Bundle, Room, unplaced
from rlsys.weights import Transport

SERVICE_CPUS = 1.0
"""Logical cores of an environment or grading actor."""


def colocated(learner: LearnerConfig, generation: GenerationConfig) -> bool:
    """True if rank i and engine i share GPU i, because both need a fraction of one."""
    return 0 < learner.gpus_per_rank < 1 and 0 < generation.gpus_per_engine < 1


def transport_of(config: RunConfig, *, one_node: bool = True) -> Transport:
    """Return sync.transport, or what suits the places of learner and engines if that is `auto`.

    Args:
        config: what the run asks for.
        one_node: True if rank 0 and all engines are on the same node.

    Raises:
        ConfigError: shared memory is asked for, and an engine on another node cannot reach it.
    """
    asked = config.sync.transport
    if asked == "shm" and not one_node:
        raise ConfigError(
            "sync.transport 'shm' is shared memory of one node, but learner and engines are on "
            "several nodes; set sync.transport=auto, or place them on one node"
        )
    if asked != "auto":
        return asked
    if not config.learner.gpus_per_rank or not config.generation.gpus_per_engine:
        return "shm" if one_node else "object_store"
    # NCCL refuses two processes of one group on the same card, and IPC works only on one card.
    return "ipc" if colocated(config.learner, config.generation) else "nccl"


Wanted = RunConfig | SftConfig | Sequence[Bundle]
"""A run that needs resources, or the list of its bundles."""


def bundles(config: Wanted) -> list[Bundle]:
    """Return every bundle of a run: those of the placement group, then the services."""
    if isinstance(config, Sequence):
        return list(config)
    if isinstance(config, SftConfig):
        return placed_bundles(config)
    return [*placed_bundles(config), *service_bundles(config)]


def service_bundles(config: RunConfig) -> list[Bundle]:
    """Return a bundle for every environment actor, then for every grading actor."""
    nodes = config.cluster.services
    environments, graders = config.rollout.environment_actors, config.grading.actors
    return [
        *numbered_bundles("environment actor", environments, SERVICE_CPUS, nodes=nodes),
        *numbered_bundles("grading actor", graders, SERVICE_CPUS, nodes=nodes),
    ]


def placed_bundles(config: RunConfig | SftConfig) -> list[Bundle]:
    """Return the bundles of ranks, engines, and engines of the reflection model, in this order.

    Processes that share a GPU share a bundle: see `engine_bundle` and `reflection_bundle`.
    """
    learner, cluster = config.learner, config.cluster
    ranks = numbered_bundles(
        "learner rank",
        learner.ranks,
        learner.cpus_per_rank,
        learner.gpus_per_rank,
        cluster.learner,
    )
    if isinstance(config, SftConfig):
        return ranks
    generation, reflection = config.generation, _reflection_bundles(config)
    if colocated(learner, generation):
        cpus = learner.cpus_per_rank + generation.cpus_per_engine
        nodes = _both(config.cluster.learner, config.cluster.engines)
        ranks, engines = [], numbered_bundles("shared GPU", learner.ranks, cpus, 1.0, nodes)
    else:
        engines = numbered_bundles(
            "engine",
            generation.engines,
            generation.cpus_per_engine,
            generation.gpus_per_engine,
            config.cluster.engines,
        )
    if reflection_shares_policy_card(config):
        engines = [_with_reflection(*pair) for pair in zip_longest(engines, reflection)]
        reflection = []
    return ranks + engines + reflection


def _both(learner: NodesConfig, engines: NodesConfig) -> NodesConfig:
    """Return what a node must have that holds a rank and an engine."""
    names = {**learner.resources, **engines.resources}
    return NodesConfig(
        labels=learner.labels | engines.labels,
        resources={
            name: learner.resources.get(name, 0.0) + engines.resources.get(name, 0.0)
            for name in names
        },
    )


def engine_bundle(config: RunConfig, engine: int) -> int:
    """Return the index of the bundle, among the placed ones, that contains an engine."""
    return engine + (0 if colocated(config.learner, config.generation) else config.learner.ranks)


def reflection_bundle(config: RunConfig, index: int) -> int:
    """Return the index of the placed bundle that contains an engine of the reflection model."""
    return engine_bundle(
        config, index + (0 if reflection_shares_policy_card(config) else config.generation.engines)
    )


def shares_cards(config: RunConfig) -> bool:
    """True if processes of different kinds share GPUs, so that a bundle has several processes."""
    return colocated(config.learner, config.generation) or reflection_shares_policy_card(config)


def reflection_shares_policy_card(config: RunConfig) -> bool:
    """True if engine i of the reflection model shares GPU i with engine i of the policy.

    They share it if both need a fraction of a GPU.
    """
    revision = config.revision
    return (
        revision is not None
        and 0 < revision.generation.gpus_per_engine < 1
        and 0 < config.generation.gpus_per_engine < 1
    )


def _reflection_bundles(config: RunConfig) -> list[Bundle]:
    """Return a bundle for every engine of the reflection model."""
    if config.revision is None:
        return []
    wanted = config.revision.generation
    return numbered_bundles(
        "reflection engine",
        wanted.engines,
        wanted.cpus_per_engine,
        wanted.gpus_per_engine,
        config.cluster.engines,
    )


def _with_reflection(card: Bundle, added: Bundle | None) -> Bundle:
    """Return the bundle with a reflection engine added. It needs at most one whole GPU."""
    if added is None:
        return card
    # A bundle of learner and engine already claims the whole GPU, whatever their shares are.
    return card._replace(cpus=card.cpus + added.cpus, gpus=min(card.gpus + added.gpus, 1.0))


def numbered_bundles(
    name: str, count: int, cpus: float, gpus: float = 0.0, nodes: NodesConfig | None = None
) -> list[Bundle]:
    """Return `count` equal bundles, numbered from 1."""
    where = nodes or NodesConfig()
    return [Bundle(f"{name} {i + 1} of {count}", cpus, gpus, where) for i in range(count)]


def check_shares(config: RunConfig) -> None:
    """Raise ConfigError for GPU settings that no machine can fulfil."""
    rank, engine = config.learner.gpus_per_rank, config.generation.gpus_per_engine
    if rank > 1:
        raise ConfigError(
            f"learner.gpus_per_rank {rank:g} is more than the one GPU that a rank can use; "
            "raise learner.ranks instead"
        )
    _check_parallel("generation", config.generation)
    if colocated(config.learner, config.generation) and rank + engine > 1:
        raise ConfigError(
            f"learner.gpus_per_rank {rank:g} and generation.gpus_per_engine {engine:g} share a "
            f"GPU but add up to {rank + engine:g}; lower them to a sum of 1"
        )
    if config.cluster.layout == "split" and colocated(config.learner, config.generation):
        raise ConfigError(
            "cluster.layout 'split' keeps engines away from the learner's nodes, but with "
            f"learner.gpus_per_rank {rank:g} and generation.gpus_per_engine {engine:g} they share "
            "a GPU; set cluster.layout=shared, or give each process a whole GPU"
        )
    _check_labels(config)
    ranks, engines = config.learner.ranks, config.generation.engines
    if colocated(config.learner, config.generation) and ranks != engines:
        raise ConfigError(
            f"learner.ranks {ranks} and generation.engines {engines} share GPUs in pairs; set "
            "them to the same number, or give each process a whole GPU"
        )
    if config.revision is not None:
        _check_reflection(config, config.revision.generation)


def _check_labels(config: RunConfig) -> None:
    learner, engines = config.cluster.learner.labels, config.cluster.engines.labels
    for key in learner.keys() & engines.keys():
        if colocated(config.learner, config.generation) and learner[key] != engines[key]:
            raise ConfigError(
                f"cluster.learner.labels and cluster.engines.labels ask for different values of "
                f"{key!r}, but learner and engines share GPUs; set them to the same value"
            )


def _check_parallel(key: str, wanted: EnginesConfig) -> None:
    engine, parallel = wanted.gpus_per_engine, wanted.tensor_parallel
    if engine and engine != parallel and (engine > 1 or parallel > 1):
        raise ConfigError(
            f"{key}.gpus_per_engine {engine:g} does not match {key}.tensor_parallel "
            f"{parallel}; set both to the same number, or tensor_parallel to 1 for a part of a GPU"
        )


def _check_reflection(config: RunConfig, wanted: EnginesConfig) -> None:
    key = "environment.revision.generation"
    _check_parallel(key, wanted)
    if not reflection_shares_policy_card(config):
        return
    if wanted.engines > config.generation.engines:
        raise ConfigError(
            f"{key}.engines {wanted.engines} is more than generation.engines "
            f"{config.generation.engines}, with which they share GPUs in pairs; lower it, or give "
            "these engines whole GPUs"
        )
    rank = config.learner.gpus_per_rank if colocated(config.learner, config.generation) else 0
    total = rank + config.generation.gpus_per_engine + wanted.gpus_per_engine
    if total > 1:
        raise ConfigError(
            f"{key}.gpus_per_engine {wanted.gpus_per_engine:g} and the other shares of its GPU "
            f"add up to {total:g}; lower them to a sum of 1, or give these engines whole GPUs"
        )


def check_resources(config: Wanted, nodes: Sequence[Mapping[str, float]]) -> None:
    """Raise ResourceError for the first bundle that fits on no node, if there is one.

    `nodes` are the total resources of every node in the format of Ray: {"CPU": 8, "GPU": 2}.
    """
    free = [Room.of(node) for node in nodes]
    total = "; ".join(map(str, free))
    if missing := unplaced(bundles(config), free):
        left = "; ".join(map(str, free))
        raise ResourceError(
            f"{missing[0]} fits on no node: the nodes have {total}, and the other bundles leave "
            f"{left}; reduce the needs in the configuration, or add nodes"
        )


def starts_local_ray() -> bool:
    """Return True if a run starts a Ray of its own, and False if it joins a cluster.

    A blank RAY_ADDRESS counts as none: scripts often set it to a variable that has no value.
    """
    return os.environ.get("RAY_ADDRESS", "").strip() in ("", "local")


def check_local_gpus(config: Wanted) -> None:
    """Check the GPUs of this machine before a local Ray starts on it. Raises ResourceError.

    Logical cores are not compared: a local Ray is started with as many as the run needs.
    """
    wants_gpu = any(bundle.gpus for bundle in bundles(config))
    if not wants_gpu or not starts_local_ray():
        return
    import torch

    try:
        check_resources(config, [{"CPU": inf, "GPU": torch.cuda.device_count()}])
    except ResourceError as error:
        raise ResourceError(
            f"{error}; set RAY_ADDRESS=auto to use a cluster that is already running"
        ) from None
