"""Group-relative policy optimisation: a reward against the mean of its group.

Sources: DeepSeekMath, arXiv 2402.03300, Section 4.1 (scale `std`); Dr. GRPO, arXiv 2503.20783,
Section 3.2 (scale `none`); RLOO, arXiv 2402.14740 (scale `leave_one_out`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

EPSILON = 1e-4
"""Added to the standard deviation, so that nearly equal rewards do not give huge advantages."""


def advantages(rewards: ArrayLike, *, scale: str = "none") -> NDArray[np.float64]:
    """Return the advantage of each of the G episodes of one problem, float64[G].

    `none` subtracts the mean of the group. `std` also divides by the standard deviation of the
    group plus EPSILON. This is the sample deviation (divisor G - 1), as in the common GRPO
    implementations: the group is a sample of the policy's answers to this problem. `leave_one_out`
    subtracts the mean of the other G - 1 rewards, which is `none` times G / (G - 1). Equal rewards
    give exactly 0.

    Raises:
        ValueError: unknown scale.
    """
    rewards_G = np.asarray(rewards, dtype=np.float64)
    # The mean of equal rewards may have a rounding error. Differences to the first reward are
    # exactly 0 for equal rewards, and so is their mean.
    offset_G = rewards_G - rewards_G[0]
    centred_G: NDArray[np.float64] = offset_G - offset_G.mean()
    match scale:
        case "none":
            return centred_G
        case "std":
            deviation: float = np.sqrt(np.square(centred_G).sum() / max(len(centred_G) - 1, 1))
            return centred_G / (deviation + EPSILON)
        case "leave_one_out":
            return centred_G * (len(centred_G) / max(len(centred_G) - 1, 1))
        case _:
            raise ValueError(f"scale {scale!r} is unknown; use 'none', 'std' or 'leave_one_out'")
