"""Bundles of resources, and the room that nodes have for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from rlsys.config import NodesConfig


class Bundle(NamedTuple):
    """Resources that one node must provide together.

    Example: Bundle(name="engine 1 of 2", cpus=1.0, gpus=0.5)
    """

    name: str
    cpus: float
    gpus: float
    nodes: NodesConfig = NodesConfig()
    """The nodes that may provide them."""

    @property
    def resources(self) -> dict[str, float]:
        """What Ray reserves on the node."""
        gpu = {"GPU": self.gpus} if self.gpus else {}
        return {"CPU": self.cpus} | gpu | self.nodes.resources

    def __str__(self) -> str:
        parts = [f"{name}: {amount:g}" for name, amount in self.resources.items()]
        labels = ", ".join(f"{key}={value}" for key, value in self.nodes.labels.items())
        on = f" on a node with {labels}" if labels else ""
        return f"{self.name} {{{', '.join(parts)}}}{on}"


@dataclass(slots=True)
class Room:
    """Free resources of a node: logical cores, the free part of every GPU, custom resources."""

    cpus: float
    cards: list[float]
    custom: dict[str, float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, resources: Mapping[str, float], labels: Mapping[str, str] | None = None) -> Room:
        """Return the room of a node; `resources` are in the format of Ray."""
        gpus = resources.get("GPU", 0.0)
        # Ray does not publish how much of which GPU is free: what is no whole one counts as one.
        cards = [1.0] * int(gpus) + ([gpus % 1] if gpus % 1 else [])
        known = ("CPU", "GPU", "memory", "object_store_memory", "node:", "accelerator_type:")
        # Ray lists the resources of placement groups as resources of their own.
        custom = {
            name: amount
            for name, amount in resources.items()
            if not name.startswith(known) and "_group_" not in name
        }
        return cls(resources.get("CPU", 0.0), cards, custom, labels or {})

    def take(self, bundle: Bundle) -> bool:
        """Take the resources of a bundle if the node has them; return whether it did.

        A fraction of a GPU comes from one GPU only.
        """
        shares = [bundle.gpus] if bundle.gpus <= 1 else [1.0] * int(bundle.gpus)
        chosen = self._cards_for([share for share in shares if share])
        if chosen is None or self.cpus < bundle.cpus:
            return False
        extra = bundle.nodes.resources
        if any(self.custom.get(name, 0.0) < amount for name, amount in extra.items()):
            return False
        if not labels_match(bundle.nodes.labels, self.labels):
            return False
        self.cpus -= bundle.cpus
        for name, amount in extra.items():
            self.custom[name] -= amount
        for card, share in chosen.items():
            self.cards[card] -= share
        return True

    def _cards_for(self, shares: Sequence[float]) -> dict[int, float] | None:
        """Choose a GPU for every share, by first fit as in Ray; None if there are too few."""
        chosen: dict[int, float] = {}
        for share in shares:
            fitting = (
                i for i, free in enumerate(self.cards) if i not in chosen and free >= share - 1e-9
            )
            card = next(fitting, None)
            if card is None:
                return None
            chosen[card] = share
        return chosen

    def __str__(self) -> str:
        cpus = "any" if self.cpus == inf else f"{self.cpus:g}"
        custom = "".join(f", {name}: {amount:g}" for name, amount in self.custom.items())
        return f"{{CPU: {cpus}, GPU: {sum(self.cards):g}{custom}}}"


def unplaced(wanted: Sequence[Bundle], rooms: Sequence[Room]) -> list[Bundle]:
    """Take room for every bundle; return those for which there is none."""
    # Large bundles first, as in a placement group. A small bundle could otherwise take part of a
    # GPU that a large bundle needs.
    largest_first = sorted(wanted, key=lambda b: (-b.gpus, -b.cpus))
    return [bundle for bundle in largest_first if not any(room.take(bundle) for room in rooms)]


def labels_match(wanted: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """Return True if a node with `labels` has what is wanted, in the format of Ray's selectors.

    Example: labels_match({"zone": "!in(a, b)"}, {"zone": "c"}) is True.
    """

    def matches(key: str, condition: str) -> bool:
        values = condition.removeprefix("!")
        if values.startswith("in("):
            values = values[3:].removesuffix(")")
        found = labels.get(key) in {value.strip() for value in values.split(",")}
        return found != condition.startswith("!")

    return all(matches(key, condition) for key, condition in wanted.items())
