"""Follows the actors of a run over the nodes of the cluster, and says who has to move."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from rlsys.launch.homes import EngineHomes
from rlsys.launch.nodes import Cluster, Place, cluster_now, place_of
from rlsys.launch.placement import RayOptions, node_of
from rlsys.launch.resources import Bundle
from rlsys.training.protocols import Departure

if TYPE_CHECKING:
    from ray.actor import ActorHandle

LOOK_PAUSE_S: Final = 2.0
"""Between two looks at the cluster."""


class Followed:
    """Where all actors of a run stand; `watch` runs as long as the run."""

    def __init__(
        self,
        homes: EngineHomes,
        *,
        services: Mapping[str, ActorHandle],
        ranks: Sequence[RayOptions] = (),
        bundles: Sequence[Bundle] = (),
        tell: Callable[[str], None],
        avoid: Callable[[frozenset[str]], None] = lambda names: None,
    ) -> None:
        """Follow the engines of `homes` and other actors.

        Args:
            homes: learns where the engines stand.
            services: environment and grading actors by name, which Ray starts again.
            ranks: Ray options of every rank of the learner, as they are now.
            bundles: what every rank has reserved; none if the learner cannot move.
            tell: takes a sentence about every actor that Ray started again.
            avoid: gets the names of the services on nodes that leave.
        """
        self._homes = homes
        self._services = services
        self._ranks = ranks
        self._bundles = bundles
        self._tell = tell
        self._avoid = avoid
        self._cluster = Cluster({}, frozenset())
        self._places: dict[str, Place] = {}
        self._rank_nodes: list[str] = []
        self._saved_for: frozenset[str] = frozenset()

    async def watch(self) -> None:
        """Look at the cluster every few seconds, until cancelled."""
        while True:
            # In a thread: a head node that does not answer must not stop the event loop, and with
            # it the watchdog.
            # A look that fails changes nothing: deaths are noticed by the calls that fail.
            with suppress(Exception):
                places = await asyncio.to_thread(self._look)
                self._compare(places)
                left = self._cluster.leaving
                self._avoid(frozenset(name for name, place in places.items() if place.node in left))
            await asyncio.sleep(LOOK_PAUSE_S)

    def _look(self) -> dict[str, Place]:
        self._cluster = cluster_now()
        self._homes.look(self._cluster)
        self._rank_nodes = [node_of(options) for options in self._ranks]
        return {name: place_of(actor) for name, actor in self._services.items()}

    def _compare(self, places: Mapping[str, Place]) -> None:
        """Say which services Ray has started again since the last look."""
        for name, place in places.items():
            before = self._places.setdefault(name, place)
            if not place.node or place == before:
                continue
            self._places[name] = place
            cause = "its node left" if place.node != before.node else "it died"
            self._tell(
                f"{name} was started again by Ray, because {cause}; its work is repeated with the "
                "same seeds"
            )

    def departure(self) -> Departure | None:
        """Return why the learner should leave its nodes, if it should do anything now."""
        leaving = self._cluster.leaving.intersection(self._rank_nodes)
        if not leaving:
            return None
        names = ", ".join(str(i) for i, node in enumerate(self._rank_nodes) if node in leaving)
        reason = f"learner rank {names} stands on a node that is drained"
        if self._bundles:
            freed = zip(self._rank_nodes, self._bundles, strict=True)
            if self._cluster.has_room(self._bundles, freed):
                return Departure(reason, movable=True)
        if leaving <= self._saved_for:
            return None
        self._saved_for = leaving
        return Departure(reason, movable=False)
