"""Advantages of episodes of several turns, against the other episodes of the same seed.

Shapes: G episodes of a group, T turns of the longest one. Arrays [G, T] hold NaN where an episode
had ended. All members of a group share the seed, so turn t asks all of them the same thing; what
differs is what they had spent by then.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats64 = NDArray[np.float64]


def returns(
    rewards_GT: Floats64, *, credit: Literal["episode", "turn"], discount: float = 1.0
) -> Floats64:
    """Return what every reply is credited with, NaN where there was none.

    `episode`: the sum of the whole episode's rewards, for every reply (the published choice).
    `turn`: the discounted sum from the reply on, sum_k discount^k r_{t+k}; what came before a
    reply is no merit of it.

    Example: returns([[1, 0, 2]], credit="turn", discount=0.5) is [[1.5, 1, 2]]
    """
    played_GT = ~np.isnan(rewards_GT)
    known_GT = np.where(played_GT, rewards_GT, 0.0)
    if credit == "episode":
        returns_GT = np.broadcast_to(known_GT.sum(axis=1, keepdims=True), known_GT.shape)
    else:
        returns_GT = np.zeros_like(known_GT)
        later_G = np.zeros(len(known_GT))
        for turn in reversed(range(known_GT.shape[1])):
            later_G = known_GT[:, turn] + discount * later_G
            returns_GT[:, turn] = later_G
    return np.where(played_GT, returns_GT, np.nan)


def advantages(
    rewards_GT: Floats64,
    *,
    credit: Literal["episode", "turn"],
    discount: float = 1.0,
    scale: Literal["none", "std"] = "none",
) -> Floats64:
    """Return the advantage of every reply [G, T], NaN where there was none.

    Credit `episode` compares the returns of episodes, as GRPO does (arXiv 2402.03300, Section
    4.1.3). Credit `turn` compares, turn by turn, the rewards still to come of those episodes that
    got there; a reply that nobody else can be compared with has advantage 0. `std` divides by the
    sample standard deviation of what is compared, plus 1e-6.
    """
    returns_GT = returns(rewards_GT, credit=credit, discount=discount)
    if credit == "episode":
        # One return per episode, however many replies it has: an episode counts once.
        return np.where(np.isnan(rewards_GT), np.nan, _centred(returns_GT[:, :1], scale=scale))
    return _centred(returns_GT, scale=scale)


def _centred(returns_GT: Floats64, *, scale: Literal["none", "std"]) -> Floats64:
    """Every column less the mean of its numbers."""
    counts_T = (~np.isnan(returns_GT)).sum(axis=0)
    mean_T = np.nansum(returns_GT, axis=0) / np.maximum(counts_T, 1)
    centred_GT: Floats64 = returns_GT - mean_T
    if scale == "none":
        return centred_GT
    variance_T = np.nansum(centred_GT**2, axis=0) / np.maximum(counts_T - 1, 1)
    scaled_GT: Floats64 = centred_GT / (np.sqrt(variance_T) + 1e-6)
    return scaled_GT
