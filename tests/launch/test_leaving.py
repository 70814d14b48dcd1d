"""What a run says and does about actors whose nodes leave."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from rlsys.launch import leaving
from rlsys.launch.leaving import Followed
from rlsys.launch.nodes import Cluster, Place
from rlsys.launch.placement import NodeState
from rlsys.launch.resources import Bundle
from rlsys.training.protocols import Departure

RANK = Bundle("learner rank", 1, 0)


def cluster(free: Mapping[str, float], leaving: frozenset[str] = frozenset()) -> Cluster:
    """Nodes with so many free cores, and nodes that leave."""
    return Cluster(
        {
            node: NodeState(node, node, node, {}, {"CPU": 9.0}, {"CPU": cpus})
            for node, cpus in free.items()
        },
        leaving,
    )


class World:
    """A cluster whose looks are written down in advance; it is also the homes of engines."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cluster = Cluster({}, frozenset())
        self.places: dict[str, Place] = {}
        self.rank_nodes: list[str] = []
        self.told: list[str] = []
        self.avoided: list[frozenset[str]] = []
        monkeypatch.setattr(leaving, "cluster_now", lambda: self.cluster)
        monkeypatch.setattr(leaving, "place_of", lambda actor: self.places[actor])
        monkeypatch.setattr(leaving, "node_of", lambda options: self.rank_nodes[options])
        monkeypatch.setattr(leaving, "LOOK_PAUSE_S", 0.001)

    def look(self, cluster: Cluster) -> None:
        assert cluster is self.cluster

    def follow(self, services: tuple[str, ...] = (), ranks: int = 0, **options: Any) -> Followed:
        homes: Any = self
        handles: Mapping[str, Any] = {name: name for name in services}
        indices: Any = range(ranks)
        return Followed(
            homes,
            services=handles,
            ranks=indices,
            tell=self.told.append,
            avoid=self.avoided.append,
            **options,
        )


def looks(followed: Followed, *changes: Any) -> None:
    """Look at the cluster after each change."""

    async def main() -> None:
        watching = asyncio.create_task(followed.watch())
        for change in changes:
            await asyncio.sleep(0.05)
            change()
        await asyncio.sleep(0.05)
        watching.cancel()

    asyncio.run(main())


def test_services_that_ray_started_again_are_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.cluster = cluster({"a": 0}, frozenset({"b"}))
    world.places = {"environment actor 0": Place("a", 0), "grading actor 1": Place("b", 0)}

    def died() -> None:
        world.places["environment actor 0"] = Place("a", 1)

    def waits() -> None:
        world.places["grading actor 1"] = Place("", 0)

    def elsewhere() -> None:
        world.cluster = cluster({"a": 0})
        world.places["grading actor 1"] = Place("a", 1)

    looks(world.follow(tuple(world.places)), died, waits, elsewhere)
    again = " was started again by Ray, because {}; its work is repeated with the same seeds"
    assert world.told == [
        "environment actor 0" + again.format("it died"),
        "grading actor 1" + again.format("its node left"),
    ]
    assert set(world.avoided) == {frozenset({"grading actor 1"}), frozenset()}


def test_a_look_that_fails_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    followed = world.follow(("gone",))
    looks(followed)
    assert world.told == []
    assert followed.departure() is None


def test_the_learner_leaves_if_other_nodes_have_room(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.rank_nodes = ["a", "b"]
    followed = world.follow(ranks=2, bundles=[RANK] * 2)
    world.cluster = cluster({"a": 0, "b": 0})
    looks(followed)
    assert followed.departure() is None
    reason = "learner rank 1 stands on a node that is drained"
    # Rank 0 frees its core on node a; the other rank has room on node c only.
    world.cluster = cluster({"a": 0}, frozenset({"b"}))
    looks(followed)
    assert followed.departure() == Departure(reason, movable=False)
    assert followed.departure() is None  # saved once, and there is still no room
    world.cluster = cluster({"a": 0, "c": 1}, frozenset({"b"}))
    looks(followed)
    assert followed.departure() == Departure(reason, movable=True)


def test_a_learner_that_shares_cards_is_only_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.rank_nodes = ["a"]
    followed = world.follow(ranks=1)
    world.cluster = cluster({"c": 9}, frozenset({"a"}))
    looks(followed)
    departure = followed.departure()
    assert departure is not None and not departure.movable
