"""The memory of every card of a run, and of the host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from rlsys.planning.cards import GIB
from rlsys.planning.layout import HOST, Place
from rlsys.planning.memory import CONTEXT_BYTES, PROCESS_BYTES, Part, total


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacePlan:
    """A card or the host: its processes and their memory."""

    place: Place
    parts: tuple[tuple[str, Part], ...]
    """Every process by name, and one part of its memory."""
    capacity: int | None
    """Bytes; None for a host that is not this machine."""

    @property
    def size(self) -> int:
        """Bytes of all parts: what nvidia-smi shows on a card that has room for them."""
        return total([part for _, part in self.parts])

    @property
    def needed(self) -> int:
        """Bytes without the free blocks, which a full card gets back."""
        return total([part for _, part in self.parts if not part.given_back])

    @property
    def fits(self) -> bool:
        """True if what is needed fits into the capacity."""
        return self.capacity is None or self.needed <= self.capacity


def fill(place: Place, memories: Mapping[str, tuple[Part, ...]], capacity: int | None) -> PlacePlan:
    """Return a place with the memory of its processes; `memories` has the parts of every role."""
    process = (
        Part("libraries", PROCESS_BYTES)
        if place.name == HOST
        else Part("CUDA context", CONTEXT_BYTES)
    )
    parts = [
        (f"{tenant.role} {tenant.index}", part)
        for tenant in place.tenants
        for part in (*memories[tenant.role], process)
    ]
    return PlacePlan(place=place, parts=tuple(parts), capacity=capacity)


def alike(places: Sequence[PlacePlan]) -> list[list[PlacePlan]]:
    """Group neighbouring places whose processes need the same."""

    def key(place: PlacePlan) -> list[tuple[str, Part]]:
        return [(process.rpartition(" ")[0], part) for process, part in place.parts]

    return [list(group) for _, group in groupby(places, key)]


def place_names(places: Sequence[PlacePlan]) -> str:
    """Return `card 0`, or `card 0 to card 3, each,` for several places."""
    first, last = places[0].place.name, places[-1].place.name
    return first if first == last else f"{first} to {last}, each,"


def processes(place: PlacePlan) -> str:
    """Return the processes of a place, for instance `1 learner rank and 1 engine`."""
    count = Counter(tenant.role for tenant in place.place.tenants)
    return " and ".join(f"{number} {role}{'s' * (number > 1)}" for role, number in count.items())


def overfull(places: Sequence[PlacePlan]) -> str:
    """Return the sentence about places of the same kind that have too little memory."""
    place = places[0]
    return (
        f"{place_names(places)} with {processes(place)} needs {place.needed / GIB:.1f} GiB and has "
        f"{(place.capacity or 0) / GIB:.1f} GiB"
    )
