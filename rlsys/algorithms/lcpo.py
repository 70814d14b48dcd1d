"""Length-controlled policy optimisation: a reward for being right and of the target length.

Source: LCPO-exact of L1, arXiv 2503.04697, Eq. 1. The paper draws a target for every problem, and
the prompt states it. Here the target is the same for all problems.

Shapes: G episodes of one problem.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def rewards(
    scores: ArrayLike, lengths: ArrayLike, *, target: int, alpha: float = 3e-4
) -> NDArray[np.float64]:
    """Return score - alpha * |target - length|, float64[G].

    Args:
        scores: [G] reward for accuracy alone.
        lengths: [G] sampled tokens of each response.
        target: tokens that a response should have.
        alpha: price of a token more or less; 3e-4 in the paper, for targets up to 4000.
    """
    distance_G = np.abs(np.asarray(lengths, dtype=np.float64) - target)
    rewards_G: NDArray[np.float64] = np.asarray(scores, dtype=np.float64) - alpha * distance_G
    return rewards_G
