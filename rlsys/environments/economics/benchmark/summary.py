"""Numbers computed from episodes: means with bootstrap intervals, paired differences, allocation.

The bootstrap resamples whole episodes, not answers, because the answers of one episode depend on
each other: they share its budget.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Final, TypedDict

import numpy as np

from rlsys.estimates import bootstrap_mean

if TYPE_CHECKING:
    from rlsys.environments.economics.benchmark.results import EpisodeResult, EpisodesByAgent

PAIRED_NUMBERS: Final = ("total_reward", "accuracy", "utilisation")
HIDDEN: Final = "hidden"
"""Type of all questions if the environment hides types."""


Interval = Mapping[str, float]
"""An Estimate as it is written to the file: mean, low, high."""


class TypeAllocation(TypedDict):
    """The answers to questions of one type."""

    answers: int
    tokens: Interval
    """Tokens per answer; the interval is over the episodes that have the type."""
    budget_share: float
    """Share of the budgets of all episodes."""
    right: float
    """Share of right answers."""


def summary(episodes: Sequence[EpisodeResult]) -> dict[str, Interval]:
    """Return the mean over episodes of each number in `EpisodeResult.numbers`.

    Regret is included only if the oracle's return is known for every episode.
    """
    rows = [episode.numbers() for episode in episodes]
    names = [name for name in rows[0] if all(name in row for row in rows)]
    return {name: bootstrap_mean([row[name] for row in rows])._asdict() for name in names}


def paired(raw: EpisodesByAgent) -> list[dict[str, str | int | Interval]]:
    """Return the mean differences between each two agents over the episodes that both played.

    Each row holds `agent`, `over` and the number of shared `episodes` (same seed and budget). If
    there are any, it also holds the difference agent - over of return, accuracy and utilisation.
    """
    rows: list[dict[str, str | int | Interval]] = []
    for agent, over in combinations(raw, 2):
        theirs = {(e.seed, e.budget): e.numbers() for e in raw[over]}
        shared = [
            (e.numbers(), theirs[e.seed, e.budget])
            for e in raw[agent]
            if (e.seed, e.budget) in theirs
        ]
        row: dict[str, str | int | Interval] = {
            "agent": agent,
            "over": over,
            "episodes": len(shared),
        }
        for name in PAIRED_NUMBERS if shared else ():
            differences = [one[name] - other[name] for one, other in shared]
            row[name] = bootstrap_mean(differences)._asdict()
        rows.append(row)
    return rows


def allocation(episodes: Sequence[EpisodeResult]) -> dict[str, TypeAllocation]:
    """Return how the tokens were allocated, by question type in natural order."""
    tokens: dict[str, list[list[int]]] = {}
    right: dict[str, list[bool]] = {}
    for episode in episodes:
        here: dict[str, list[int]] = {}
        for kind, cost, correct in zip(episode.types, episode.tokens, episode.right, strict=False):
            here.setdefault(kind or HIDDEN, []).append(cost)
            right.setdefault(kind or HIDDEN, []).append(correct)
        for kind, costs in here.items():
            tokens.setdefault(kind, []).append(costs)
    budget = sum(episode.budget for episode in episodes)
    return {
        kind: {
            "answers": len(right[kind]),
            "tokens": bootstrap_mean([float(np.mean(costs)) for costs in tokens[kind]])._asdict(),
            "budget_share": sum(map(sum, tokens[kind])) / budget,
            "right": float(np.mean(right[kind])),
        }
        for kind in sorted(tokens, key=natural)
    }


def natural(name: str) -> list[tuple[int, str]]:
    """Return a sort key that orders `arithmetic_9` before `arithmetic_10`."""
    parts = re.split(r"(\d+)", name)
    return [(int(part), "") if part.isdigit() else (0, part) for part in parts]
