"""Advantages in episodes of several turns, relative to the other episodes of the group.

Shapes: G episodes of a group, T turns of the longest episode. Arrays [G, T] hold NaN after the end
of an episode.

All episodes of a group start from the same seed, so the environment asks the same question at turn
t of each. Without the shared seed the baseline would measure which episode got the easier question.
The episodes differ in their replies, and in the tokens that they have spent before turn t.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats64 = NDArray[np.float64]


def returns(
    rewards_GT: Floats64, *, credit: Literal["episode", "turn"], discount: float = 1.0
) -> Floats64:
    """Return the return of every reply [G, T], NaN where there is no reply.

    `episode`: the sum of all rewards of the episode, the same for every reply (as published).
    `turn`: the discounted sum from the reply on, sum_k discount^k r_{t+k}. Rewards before the reply
    are left out, because the reply cannot have influenced them.

    Example: returns([[1, 0, 2]], credit="turn", discount=0.5) is [[1.5, 1, 2]]
    """
    played_GT = ~np.isnan(rewards_GT)
    # NaN would spread through the sums below. The last line puts it back.
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
    """Return the advantage of every reply [G, T], NaN where there is no reply.

    Credit `episode` compares the returns of whole episodes, as GRPO does (arXiv 2402.03300, Section
    4.1.3). Credit `turn` compares the returns at turn t, over the episodes that reached turn t. If
    only one episode reached it, the advantage is 0. `std` divides by the sample standard deviation
    of the compared returns, plus 1e-6.
    """
    returns_GT = returns(rewards_GT, credit=credit, discount=discount)
    if credit == "episode":
        # Use the first column only. All replies of an episode have the same return, and an episode
        # with many replies must not count more in the mean than an episode with few.
        return np.where(np.isnan(rewards_GT), np.nan, _centred(returns_GT[:, :1], scale=scale))
    return _centred(returns_GT, scale=scale)


def _centred(returns_GT: Floats64, *, scale: Literal["none", "std"]) -> Floats64:
    """Subtract from every column the mean of its numbers; NaN entries stay NaN."""
    # A column has at least one number in the longest episode. The maximum only avoids 0 / 0 for
    # columns that are NaN throughout.
    counts_T = (~np.isnan(returns_GT)).sum(axis=0)
    mean_T = np.nansum(returns_GT, axis=0) / np.maximum(counts_T, 1)
    centred_GT: Floats64 = returns_GT - mean_T
    if scale == "none":
        return centred_GT
    variance_T = np.nansum(centred_GT**2, axis=0) / np.maximum(counts_T - 1, 1)
    scaled_GT: Floats64 = centred_GT / (np.sqrt(variance_T) + 1e-6)
    return scaled_GT
