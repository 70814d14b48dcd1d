"""Reserves a place for every process of a run, and says what is missing while it waits.

learner     on one node if one has room for all ranks, else on as few as possible
engines     on as few nodes as possible; all cards of one engine are on one node; each engine has a
            reservation of its own, so that it can move, unless it shares cards with others
services    environment and grading actors: spread, on nodes without a GPU if these have room
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import ray

from actors.vllm_settings import engine_environment
from rlsys.config import EnginesConfig, LearnerConfig, NodesConfig, RunConfig, SftConfig
from rlsys.errors import ResourceError
from rlsys.launch.resources import (
    engine_bundle,
    placed_bundles,
    reflection_bundle,
    service_bundles,
    shares_cards,
)
from rlsys.launch.room import Bundle, Room, unplaced

if TYPE_CHECKING:
    from ray.util.placement_group import PlacementGroup

NODE_ID: Final = "ray.io/node-id"
"""Label that Ray gives to every node."""
POLL_S: Final = 2.0
"""How often a reservation is looked at."""
TELL_S: Final = 30.0
"""How often a line says what is missing."""

RayOptions = dict[str, object]
"""Options of a Ray actor: resources, environment variables, place."""


class NodeState(NamedTuple):
    """A living node of the cluster."""

    id: str
    name: str
    """Host name and address."""
    address: str
    labels: Mapping[str, str]
    total: Mapping[str, float]
    free: Mapping[str, float]

    @property
    def room(self) -> Room:
        """What is free."""
        return Room.of(self.free, self.labels)


class Placement(NamedTuple):
    """Ray options of every actor of a run, and where these actors start."""

    ranks: list[RayOptions]
    engines: list[RayOptions]
    reflection: list[RayOptions]
    services: list[RayOptions]
    """Environment actors, then grading actors."""
    nodes: dict[str, list[str]]
    """Names of the bundles by id of their node."""
    rank_bundles: list[Bundle]
    """What each rank has reserved; empty if the ranks share a reservation with engines."""
    engine_bundles: list[Bundle]
    """What each engine has reserved; empty if engines share a reservation with others."""


class _Slot(NamedTuple):
    """A reserved bundle."""

    bundle: Bundle
    group: PlacementGroup
    place: int
    """Index of the bundle in its group."""


def registered_nodes() -> list[NodeState]:
    """Return the living nodes."""
    free = ray._private.state.available_resources_per_node()
    return [
        NodeState(
            id=node["NodeID"],
            name=f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})",
            address=node["NodeManagerAddress"],
            labels=node["Labels"] | {NODE_ID: node["NodeID"]},
            total=node["Resources"],
            free=free.get(node["NodeID"], {}),
        )
        for node in ray.nodes()
        if node["Alive"]
    ]


async def reserve_placement(
    config: RunConfig | SftConfig,
    tell: Callable[[str], None] = lambda line: None,
    moved: Callable[[], None] = lambda: None,
) -> Placement:
    """Reserve room for every process; return the options that put each actor into its place.

    Args:
        config: what is wanted.
        tell: takes a line about what is missing, now and then.
        moved: called as long as this waits, so that the watchdog does not end the run.

    Raises:
        ResourceError: after cluster.wait_s something is still missing.
    """
    waiting = _Waiting(config.cluster.wait_s, tell, moved)
    placed = placed_bundles(config)
    if isinstance(config, SftConfig):
        slots = await waiting.reserve(placed, _strategy(placed))
        return _placement(config, slots, [])
    first_engine = engine_bundle(config, 0)
    learner, engines = placed[:first_engine], placed[first_engine:]
    slots = await waiting.reserve(learner, _strategy(learner)) if learner else []
    if config.cluster.layout == "split":
        engines = [_away_from(bundle, list(_nodes(slots))) for bundle in engines]
    if shares_cards(config):
        # Without ranks of their own these bundles hold the learner too.
        slots += await waiting.reserve(engines, "PACK" if learner else _strategy(engines))
    else:
        # One node that joins is then enough for one engine: Ray gives all missing bundles of a
        # group a new place at once, or none of them.
        for bundle in engines:
            slots += await waiting.reserve([bundle], "PACK")
    services = _without_gpus(service_bundles(config), registered_nodes())
    placement = _placement(config, slots, await waiting.reserve(services, "SPREAD"))
    if len(placement.nodes) > 1:
        names = {node.id: node.name for node in registered_nodes()}
        parts = [f"{names.get(i, i)}: {', '.join(on)}" for i, on in placement.nodes.items()]
        tell(f"the run uses {len(parts)} nodes; {'; '.join(parts)}")
    return placement


class _Waiting:
    """One deadline for all reservations of a run."""

    def __init__(
        self, wait_s: float, tell: Callable[[str], None], moved: Callable[[], None]
    ) -> None:
        self._wait_s = wait_s
        self._end = time.monotonic() + wait_s
        self._tell = tell
        self._moved = moved

    async def reserve(self, wanted: Sequence[Bundle], strategy: str) -> list[_Slot]:
        """Return the place of every bundle, as soon as there is room for all of them."""
        from ray.util.placement_group import placement_group, remove_placement_group

        group = placement_group(
            [bundle.resources for bundle in wanted],
            strategy=strategy,
            bundle_label_selector=[_selector(bundle) for bundle in wanted],
        )
        told = -TELL_S
        while not await asyncio.to_thread(group.wait, POLL_S):
            self._moved()
            now = time.monotonic()
            left, line = self._end - now, _missing(wanted, registered_nodes())
            if now - told >= TELL_S:
                told = now
                self._tell(f"waiting for resources: {line} ({max(left, 0):.0f} s left)")
            if left <= 0:
                remove_placement_group(group)
                raise ResourceError(
                    f"after cluster.wait_s {self._wait_s:g} s the cluster has no room for the run: "
                    f"{line}; add nodes, free resources, or reduce the needs in the configuration"
                )
        return [_Slot(bundle, group, place) for place, bundle in enumerate(wanted)]


def _selector(bundle: Bundle) -> dict[str, str]:
    """Return the labels without spaces: in `in(a, b)` Ray looks for the value " b"."""
    return {key: value.replace(" ", "") for key, value in bundle.nodes.labels.items()}


def _missing(wanted: Sequence[Bundle], nodes: Sequence[NodeState]) -> str:
    """Return what is registered, free and missing."""
    missing = unplaced(wanted, [node.room for node in nodes])
    names = [str(bundle) for bundle in missing[:3]]
    if len(missing) > 3:
        names.append(f"{len(missing) - 3} more")
    total = "; ".join(f"{node.name} {Room.of(node.total)}" for node in nodes)
    free = "; ".join(str(node.room) for node in nodes)
    # Everything may fit by itself, but not on one node or not on other nodes than the learner's.
    what = ", ".join(names) or f"room for {len(wanted)} bundles such as {wanted[0]} together"
    return f"registered {total or 'no node'}, free {free or 'nothing'}, missing {what}"


def _strategy(wanted: Sequence[Bundle]) -> str:
    """Return STRICT_PACK if one node has room for all: PACK alone may prefer several small ones."""
    if any(not unplaced(wanted, [node.room]) for node in registered_nodes()):
        return "STRICT_PACK"
    return "PACK"


def _away_from(bundle: Bundle, nodes: Sequence[str]) -> Bundle:
    """Return the bundle for any node but these."""
    if not nodes:
        return bundle
    labels = bundle.nodes.labels | {NODE_ID: f"!in({', '.join(nodes)})"}
    return bundle._replace(nodes=NodesConfig(labels=labels, resources=bundle.nodes.resources))


def _without_gpus(wanted: Sequence[Bundle], nodes: Sequence[NodeState]) -> list[Bundle]:
    """Return the bundles for nodes without a GPU if these have room, else as they are."""
    with_gpu = [node.id for node in nodes if node.total.get("GPU")]
    away = [_away_from(bundle, with_gpu) for bundle in wanted]
    return list(wanted) if unplaced(away, [node.room for node in nodes]) else away


def _nodes(slots: Sequence[_Slot]) -> dict[str, list[str]]:
    """Names of the bundles by id of their node."""
    from ray.util.placement_group import placement_group_table

    found: dict[str, list[str]] = {}
    for slot in slots:
        node = placement_group_table(slot.group)["bundles_to_node_id"][slot.place]
        found.setdefault(node, []).append(slot.bundle.name)
    return found


def _placement(
    config: RunConfig | SftConfig, slots: Sequence[_Slot], services: Sequence[_Slot]
) -> Placement:
    learner, nodes = config.learner, _nodes([*slots, *services])
    variables = learner_environment(learner)
    ranks = [
        _options(slots[i], learner.cpus_per_rank, learner.gpus_per_rank, variables)
        for i in range(learner.ranks)
    ]
    if isinstance(config, SftConfig):
        return Placement(ranks, [], [], [], nodes, [slot.bundle for slot in slots], [])

    def engines(wanted: EnginesConfig, bundle: Callable[[int], int]) -> list[RayOptions]:
        cpus, gpus = wanted.cpus_per_engine, wanted.gpus_per_engine
        variables = engine_environment(on_gpu=gpus > 0, threads=int(cpus))
        return [_options(slots[bundle(i)], cpus, gpus, variables) for i in range(wanted.engines)]

    reflection = None if config.revision is None else config.revision.generation
    movable, first_engine = not shares_cards(config), engine_bundle(config, 0)
    last_engine = first_engine + config.generation.engines
    own = [slot.bundle for slot in slots] if movable else []
    return Placement(
        ranks,
        engines(config.generation, partial(engine_bundle, config)),
        [] if reflection is None else engines(reflection, partial(reflection_bundle, config)),
        [_options(slot, slot.bundle.cpus, 0.0, {"OMP_NUM_THREADS": "1"}) for slot in services],
        nodes,
        own[: learner.ranks],
        own[first_engine:last_engine],
    )


def node_of(options: RayOptions) -> str:
    """Return the id of the node with the bundle of these options; empty if it has none now."""
    from ray.util.placement_group import placement_group_table

    group, place = _place(options)
    table = placement_group_table(group)
    return str(table["bundles_to_node_id"][place]) if table.get("state") == "CREATED" else ""


def reserve_elsewhere(options: Sequence[RayOptions], bundles: Sequence[Bundle]) -> list[RayOptions]:
    """Give up a whole placement group and reserve an equal one; return the options for it.

    Ray kills the actors in the old group and makes the new one on nodes that are not drained, as
    soon as there is room.

    Args:
        options: one for every bundle of the group, in order.
        bundles: the bundles.
    """
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    remove_placement_group(_place(options[0])[0])
    group = placement_group(
        [bundle.resources for bundle in bundles],
        strategy="PACK",
        bundle_label_selector=[_selector(bundle) for bundle in bundles],
    )
    return [
        option
        | {
            "scheduling_strategy": PlacementGroupSchedulingStrategy(
                placement_group=group, placement_group_bundle_index=place
            )
        }
        for place, option in enumerate(options)
    ]


def _place(options: RayOptions) -> tuple[PlacementGroup, int]:
    """Return the placement group and the bundle in options from `reserve_placement`."""
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    strategy = options["scheduling_strategy"]
    assert isinstance(strategy, PlacementGroupSchedulingStrategy)
    return strategy.placement_group, strategy.placement_group_bundle_index


def _options(slot: _Slot, cpus: float, gpus: float, variables: dict[str, str]) -> RayOptions:
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    return {
        "num_cpus": cpus,
        "num_gpus": gpus,
        "runtime_env": {"env_vars": variables},
        "scheduling_strategy": PlacementGroupSchedulingStrategy(
            placement_group=slot.group, placement_group_bundle_index=slot.place
        ),
    }


def learner_environment(config: LearnerConfig) -> dict[str, str]:
    """Environment variables of a learner rank."""
    if config.gpus_per_rank:
        return {"DS_ACCELERATOR": "cuda"}
    return {
        "DS_ACCELERATOR": "cpu",
        "OMP_NUM_THREADS": str(max(1, int(config.cpus_per_rank))),
        "TORCHDYNAMO_DISABLE": "1",
    }
