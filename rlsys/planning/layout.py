"""Which process runs on which card, as the placement group of rlsys.launch.resources puts them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rlsys.config import RunConfig
from rlsys.launch.resources import colocated, reflection_shares_policy_card

HOST: Final = "host"
"""The place of processes without a card."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """A process that takes memory: a learner rank, or an engine (one worker of it per card)."""

    role: str
    """`learner rank`, `engine` or `reflection engine`."""
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A card or the host, with the processes on it."""

    name: str
    tenants: tuple[Tenant, ...]


def layout(config: RunConfig) -> tuple[Place, ...]:
    """Return every card of the run in order, and the host if a rank or an engine runs there.

    A fraction of a card is taken from the first one with room, as Ray does.
    """
    cards: list[tuple[float, list[Tenant]]] = []
    host: list[Tenant] = []
    for gpus, tenants in _bundles(config):
        if not gpus:
            host += tenants
        elif gpus > 1:
            cards += [(0.0, list(tenants)) for _ in range(round(gpus))]
        else:
            _put(cards, gpus, tenants)
    places = [
        Place(name=f"card {number}", tenants=tuple(tenants))
        for number, (_, tenants) in enumerate(cards)
    ]
    return (*places, *([Place(name=HOST, tenants=tuple(host))] if host else []))


def _put(cards: list[tuple[float, list[Tenant]]], gpus: float, tenants: list[Tenant]) -> None:
    for number, (free, there) in enumerate(cards):
        if free >= gpus - 1e-9:
            cards[number] = (free - gpus, [*there, *tenants])
            return
    cards.append((1.0 - gpus, list(tenants)))


def _bundles(config: RunConfig) -> list[tuple[float, list[Tenant]]]:
    """Cards and processes of every bundle of the placement group."""
    learner, generation = config.learner, config.generation
    ranks = _group("learner rank", learner.ranks, learner.gpus_per_rank)
    engines = _group("engine", generation.engines, generation.gpus_per_engine)
    reflection: list[tuple[float, list[Tenant]]] = []
    if config.revision is not None:
        wanted = config.revision.generation
        reflection = _group("reflection engine", wanted.engines, wanted.gpus_per_engine)
    if colocated(learner, generation):
        pairs = zip(ranks, engines, strict=True)
        ranks, engines = [], [(1.0, [*a, *b]) for (_, a), (_, b) in pairs]
    if reflection_shares_policy_card(config):
        for number, (gpus, tenants) in enumerate(reflection):
            before, there = engines[number]
            engines[number] = (min(before + gpus, 1.0), [*there, *tenants])
        reflection = []
    return ranks + engines + reflection


def _group(role: str, count: int, gpus: float) -> list[tuple[float, list[Tenant]]]:
    return [(gpus, [Tenant(role=role, index=i)]) for i in range(count)]
