"""Group-relative policy optimisation: a reward against the mean of its group.

Sources: DeepSeekMath, arXiv 2402.03300, Section 4.1 (scale `std`); Dr. GRPO, arXiv 2503.20783,
Section 3.2 (scale `none`); RLOO, arXiv 2402.14740 (scale `leave_one_out`); MaxRL, arXiv 2602.02710
(scale `mean`).
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
    subtracts the mean of the other G - 1 rewards, which is `none` times G / (G - 1). `mean` divides
    by the mean of the group: problems that are rarely solved count more, as they do in the gradient
    of the log-likelihood of a right answer. Equal rewards give exactly 0.

    Raises:
        ValueError: unknown scale, or negative rewards with `mean`.
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
        case "mean":
            if rewards_G.min() < 0:
                raise ValueError(
                    f"reward {rewards_G.min():g} is negative, and scale 'mean' divides by the mean "
                    "reward; use another scale, or rewards of at least 0"
                )
            # Without any reward the mean is 0, and so are the centred rewards.
            return centred_G / (rewards_G.mean() or 1.0)
        case _:
            raise ValueError(
                f"scale {scale!r} is unknown; use 'none', 'std', 'leave_one_out' or 'mean'"
            )
