"""The nodes of the cluster: which of them stay, and which are about to leave.

A node leaves when it is drained: by `ray drain-node`, by an autoscaler, or by a notice that a
preemptible machine will be taken away. Ray starts nothing new on it from then on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from rlsys.launch.placement import NodeState, registered_nodes
from rlsys.launch.resources import Bundle, Room, unplaced

if TYPE_CHECKING:
    from ray.actor import ActorHandle


class Place(NamedTuple):
    """Where a Ray actor stands."""

    node: str
    """Id of its node, empty if it has none yet."""
    restarts: int
    """How often Ray has started the actor again."""


class Cluster(NamedTuple):
    """The nodes at one moment, by Ray's node id."""

    staying: Mapping[str, NodeState]
    """Nodes that live and are not drained."""
    leaving: frozenset[str]
    """Nodes that are drained and still live."""

    def has_room(self, bundles: Sequence[Bundle], freed: Iterable[tuple[str, Bundle]] = ()) -> bool:
        """True if the nodes that stay have room for `bundles`.

        `freed` are bundles that become free first, each with the id of its node.
        """
        free = {node: dict(state.free) for node, state in self.staying.items()}
        for node, bundle in freed:
            for name, amount in bundle.resources.items() if node in free else ():
                free[node][name] = free[node].get(name, 0.0) + amount
        rooms = [Room.of(free[node], state.labels) for node, state in self.staying.items()]
        return not unplaced(bundles, rooms)


def cluster_now() -> Cluster:
    """Ask Ray's head node about all nodes."""
    from ray._private import state  # no public function tells which nodes are drained

    draining = frozenset(state.state.get_draining_nodes())
    nodes = {node.id: node for node in registered_nodes()}
    return Cluster(
        {name: node for name, node in nodes.items() if name not in draining},
        draining & nodes.keys(),
    )


def place_of(actor: ActorHandle) -> Place:
    """Ask Ray's head node where an actor stands."""
    from ray._private import state

    found = state.actors(actor._actor_id.hex())
    if not found:
        return Place("", 0)
    return Place(found["Address"]["NodeID"], int(found["NumRestarts"]))
