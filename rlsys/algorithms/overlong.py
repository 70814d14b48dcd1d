"""A soft penalty for responses that are nearly as long as allowed.

Source: DAPO, arXiv 2503.14476, Section 3.4, Eq. 13 ("soft overlong punishment"). A hard limit gives
a response of one token too many the same reward as a wrong one. The soft penalty warns before it.

Shapes: G episodes of one problem.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def penalties(
    lengths: ArrayLike, *, limit: int, buffer: int, penalty: float = 1.0
) -> NDArray[np.float64]:
    """Return what is added to each reward, float64[G], between -penalty and 0.

    It is 0 up to `limit - buffer` tokens and falls linearly to -penalty at `limit` tokens.

    Args:
        lengths: [G] sampled tokens of each response.
        limit: tokens from which the whole penalty is due (L_max).
        buffer: tokens in which the penalty rises (L_cache).
        penalty: the whole penalty; 1 in the paper.

    Example: penalties([10, 22, 25], limit=25, buffer=5, penalty=0.5) is [0, -0.2, -0.5]
    """
    exceeded_G = np.asarray(lengths, dtype=np.float64) - (limit - buffer)
    shares_G: NDArray[np.float64] = np.clip(exceeded_G / buffer, 0.0, 1.0)
    return -penalty * shares_G
