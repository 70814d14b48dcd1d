"""Where the engines of a run stand, and how one of them moves from a node that leaves.

An engine that moves is a new Ray actor with the same name in a new placement group. Whoever holds
a handle of the old one finds the new one by that name, see actors.handles.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import ray

from rlsys.launch.nodes import Cluster
from rlsys.launch.placement import RayOptions, node_of, reserve_elsewhere
from rlsys.launch.resources import Bundle

if TYPE_CHECKING:
    from ray.actor import ActorHandle

NAME_PAUSE_S: Final = 0.5
"""Between two attempts to give a new actor the name of an old one that is ending."""

StartEngine = Callable[[int, RayOptions], "ActorHandle"]
"""Starts the actor of engine i with these options."""


class EngineHomes:
    """The places of the engines of one run, as the last look at the cluster shows them."""

    def __init__(
        self, start: StartEngine, options: Sequence[RayOptions], bundles: Sequence[Bundle]
    ) -> None:
        """`options` are those of `reserve_placement`, in which every engine was started.

        Args:
            start: starts an engine again somewhere else.
            options: Ray options of every engine.
            bundles: what every engine has reserved; none if engines share that with others.
        """
        self._start = start
        self._options = list(options)
        self._cluster = Cluster({}, frozenset())
        self._bundles = bundles
        self._actors: dict[int, ActorHandle] = {}
        """Ray ends an actor that nobody holds, and others find these by name only later."""
        self._stands: list[str] = [""] * len(self._options)

    def look(self, cluster: Cluster) -> None:
        """Take the nodes as they are now, and ask Ray on which of them every engine stands."""
        self._cluster = cluster
        for engine, options in enumerate(self._options):
            self._stands[engine] = node_of(options)

    def node(self, engine: int) -> str:
        """Return the id of the engine's node; empty while it waits for one."""
        return self._stands[engine]

    def leaving(self, engine: int) -> bool:
        """True if the engine's node is drained."""
        return self._stands[engine] in self._cluster.leaving

    def has_place(self, engine: int) -> bool:
        """True if the engine has a place on a node that lives."""
        node = self._stands[engine]
        return node in self._cluster.staying or node in self._cluster.leaving

    @property
    def movable(self) -> bool:
        """True if an engine can move; engines that share cards cannot."""
        return bool(self._bundles)

    def has_room(self, engine: int) -> bool:
        """True if a node that stays has room for the engine now."""
        return self.movable and self._cluster.has_room([self._bundles[engine]])

    async def move(self, engine: int, old: ActorHandle) -> None:
        """End the engine's actor; start one with its name on a node that stays and has room."""
        ray.kill(old)
        (options,) = reserve_elsewhere([self._options[engine]], [self._bundles[engine]])
        self._options[engine] = options
        self._stands[engine] = ""
        while True:
            try:
                self._actors[engine] = self._start(engine, options)
                return
            except ValueError:  # the old actor still has the name
                await asyncio.sleep(NAME_PAUSE_S)
