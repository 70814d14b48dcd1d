"""DLER: a response that is too long earns nothing, and advantages are scaled over the whole batch.

Source: DLER, arXiv 2510.15110. Its advantage of a response is

    A = r * 1[length <= L],  minus the mean of its group,  standardised over the batch

The first two parts need one group; this file has them. The last part needs all groups of a training
step, and an environment actor has one group at a time. So the learner's ranks do it
(`loss.normalise_advantages`, rlsys.algorithms.loss.advantage_scale).

Shapes: G episodes of one problem.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rlsys.algorithms import grpo

Array = NDArray[np.float64]


def truncated_rewards(rewards: ArrayLike, lengths: ArrayLike, *, limit: int) -> Array:
    """Return the reward of every response of at most `limit` tokens, and 0 for longer ones.

    Args:
        rewards: [G] reward for accuracy alone.
        lengths: [G] sampled tokens of each response.
        limit: most tokens of a response that earns anything (L).
    """
    short_G = np.asarray(lengths) <= limit
    return np.where(short_G, np.asarray(rewards, dtype=np.float64), 0.0)


def group_advantages(rewards: ArrayLike, lengths: ArrayLike, *, limit: int) -> Array:
    """Return the truncated rewards minus their mean, float64[G]; not yet scaled over the batch.

    A group whose truncated rewards are all equal gets exactly 0, and no factor changes that.
    """
    return grpo.advantages(truncated_rewards(rewards, lengths, limit=limit))
