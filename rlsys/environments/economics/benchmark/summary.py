"""What episodes amount to: means with bootstrap intervals, paired differences, allocation.

Episodes are what is resampled, never answers: those of one episode share its budget.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from rlsys.environments.economics.benchmark.results import EpisodeResult, Raw

CONFIDENCE: Final = 0.95
RESAMPLES: Final = 2000
PAIRED_NUMBERS: Final = ("total_reward", "accuracy", "utilisation")
HIDDEN: Final = "hidden"
"""Type of a question where the environment does not tell it."""


class Estimate(NamedTuple):
    """A mean with a bootstrap interval."""

    mean: float
    low: float
    high: float


Interval = Mapping[str, float]
"""An Estimate as it is written: mean, low, high."""


def bootstrap_mean(values: Sequence[float]) -> Estimate:
    """Return the mean with its 95 % percentile bootstrap interval (2,000 resamples, fixed seed)."""
    from scipy.stats import bootstrap

    mean = float(np.mean(values))
    if len(set(values)) == 1:
        return Estimate(mean, mean, mean)
    interval = bootstrap(
        (values,),
        np.mean,
        confidence_level=CONFIDENCE,
        n_resamples=RESAMPLES,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return Estimate(mean, float(interval.low), float(interval.high))


def summary(episodes: Sequence[EpisodeResult]) -> dict[str, Interval]:
    """Return the mean over episodes of every number of `EpisodeResult.numbers`.

    Regret is in it if the oracle's return is known of every episode.
    """
    rows = [episode.numbers() for episode in episodes]
    names = [name for name in rows[0] if all(name in row for row in rows)]
    return {name: bootstrap_mean([row[name] for row in rows])._asdict() for name in names}


def paired(raw: Raw) -> list[dict[str, Any]]:
    """Return the mean differences of every two agents over the episodes they share.

    Each row names `agent`, `over`, the `episodes` shared (same seed and budget) and, if there are
    any, the difference of the return, the accuracy and the utilisation.
    """
    rows: list[dict[str, Any]] = []
    for agent, over in combinations(raw, 2):
        theirs = {(e.seed, e.budget): e.numbers() for e in raw[over]}
        shared = [
            (e.numbers(), theirs[e.seed, e.budget])
            for e in raw[agent]
            if (e.seed, e.budget) in theirs
        ]
        row: dict[str, Any] = {"agent": agent, "over": over, "episodes": len(shared)}
        for name in PAIRED_NUMBERS if shared else ():
            differences = [one[name] - other[name] for one, other in shared]
            row[name] = bootstrap_mean(differences)._asdict()
        rows.append(row)
    return rows


def allocation(episodes: Sequence[EpisodeResult]) -> dict[str, dict[str, Any]]:
    """Return, by type of question in natural order, where the tokens went.

    `answers` counted, `tokens` per answer (an interval over the episodes that have the type),
    `budget_share` of all episodes together, and the share of the answers that are `right`.
    """
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
    """Sort key that puts `arithmetic_10` behind `arithmetic_9`."""
    parts = re.split(r"(\d+)", name)
    return [(int(part), "") if part.isdigit() else (0, part) for part in parts]
