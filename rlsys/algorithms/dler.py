"""DLER: a response that is too long earns nothing, and advantages are scaled over the whole batch.

Source: DLER, arXiv 2510.15110. Its advantage of a response is

    A = r * 1[length <= L],  minus the mean of its group,  standardised over the batch

The first two parts need one group; this file has them. The last part needs all groups of a training
step, and an environment actor has one group at a time. So the learner's ranks do it
(`loss.normalise_advantages`, rlsys.algorithms.loss.advantage_scale).

Shapes: G episodes of one problem.
"""

from __future__ import annotations

from collections.abc import Sequence

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


def group_limit(right: ArrayLike, *, limit: int, easy_limits: Sequence[tuple[float, int]]) -> int:
    """Return the limit of one group, which is shorter for an easy problem.

    The paper's difficulty-aware variant tightens the limit on easy problems. How easy a problem is,
    the group itself tells: by its share of right responses, too long ones included.

    Args:
        right: bool[G] which responses are right.
        limit: the limit of a problem that reaches none of the shares.
        easy_limits: pairs of a share of right responses, and the limit from this share on.
    """
    share = float(np.mean(np.asarray(right, dtype=bool)))
    return min([limit, *(shorter for at_least, shorter in easy_limits if share >= at_least)])


def group_advantages(rewards: ArrayLike, lengths: ArrayLike, *, limit: int) -> Array:
    """Return the truncated rewards minus their mean, float64[G]; not yet scaled over the batch.

    A group whose truncated rewards are all equal gets exactly 0, and no factor changes that.
    """
    return grpo.advantages(truncated_rewards(rewards, lengths, limit=limit))
