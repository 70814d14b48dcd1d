"""Dynamic decoupled conditional advantage: being short pays only among right answers.

Source: DDCA, arXiv 2602.02099, and the advantage computation that its authors released
(github.com/alphadl/DDCA). All standard deviations are those of the population (divisor
n). Accuracy and length are normalised apart: wrong answers neither earn by being short nor move
the mean that the lengths of right answers are compared with.

Shapes: G episodes of one problem, n of them right.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


def advantages(
    rewards: ArrayLike,
    right: ArrayLike,
    lengths: ArrayLike,
    *,
    beta: float = 0.2,
    epsilon: float = 1e-6,
) -> Array:
    """Return (reward - mean) / (deviation + epsilon) + beta * length advantage, float64[G].

    Args:
        rewards: [G] reward for accuracy alone.
        right: [G] bool, whether the answer is right.
        lengths: [G] sampled tokens of each response.
        beta: weight of the length advantage.
        epsilon: added to both standard deviations.

    Raises:
        ValueError: the three do not have one entry per episode each.
    """
    rewards_G = np.asarray(rewards, dtype=np.float64)
    if not np.shape(rewards) == np.shape(right) == np.shape(lengths):
        raise ValueError(
            f"rewards {np.shape(rewards)}, right {np.shape(right)} and lengths "
            f"{np.shape(lengths)} differ in shape; give each one entry per episode"
        )
    accuracy_G = _standardised(rewards_G, epsilon)
    return accuracy_G + beta * length_advantages(right, lengths, epsilon=epsilon)


def length_advantages(right: ArrayLike, lengths: ArrayLike, *, epsilon: float = 1e-6) -> Array:
    """Return -rho * (s - mean of s) for right answers and 0 for wrong ones, float64[G].

    s is the sigmoid of the standardised length; mean and deviation are those of the right answers.
    rho = n / G, the share of right answers, lowers the pressure on problems that are hard for the
    policy. A lone right answer, and equal lengths, give 0.
    """
    right_G = np.asarray(right, dtype=np.bool_)
    length_G = np.zeros(len(right_G))
    if right_G.any():
        lengths_n = np.asarray(lengths, dtype=np.float64)[right_G]
        # Standardised lengths lie within sqrt(n), so the exponential cannot overflow.
        scores_n = 1.0 / (1.0 + np.exp(-_standardised(lengths_n, epsilon)))
        length_G[right_G] = -right_G.mean() * _centred(scores_n)
    return length_G


def _standardised(values_N: Array, epsilon: float) -> Array:
    centred_N = _centred(values_N)
    deviation: float = np.sqrt(np.square(centred_N).mean())
    return centred_N / (deviation + epsilon)


def _centred(values_N: Array) -> Array:
    """Subtract the mean; equal values are exact zeros, without the rounding of the mean."""
    offset_N = values_N - values_N[0]
    centred_N: Array = offset_N - offset_N.mean()
    return centred_N
