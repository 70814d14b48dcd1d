"""Serial-group policy optimisation: the exits of one thought are compared with each other.

Source: S-GRPO, arXiv 2505.07686. A group is *serial*: one thought, cut at m places (the
exits), and one answer at each of them. A right answer earns half as much as the right answer before
it, so the earliest exit that is right earns the most. Other thoughts play no part.

Shapes: G thoughts, m exits, counted i = 0..m-1 from the earliest on.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


def exit_rewards(right: ArrayLike, splits: ArrayLike | None = None) -> Array:
    """Return the decaying reward of every exit, float64[G, m].

    A right answer earns 1 / 2 ** (N - 1), where N is the number of right answers up to and
    including it; a wrong answer earns 0.

    Args:
        right: [G, m] whether the answer at each exit is right (above 0.5).
        splits: [G, m] number of the cut each answer hangs from, rising in a row; see
            `brpo.truncation_plan`. Answers at the same cut are equally early, so none of them
            lowers the reward of another. None: every exit is a cut of its own.

    Raises:
        ValueError: splits that do not fit right.

    Example: exit_rewards([[0, 1, 0, 1, 1]]) is [[0, 1, 0, 0.5, 0.25]]
    """
    right_Gm = np.asarray(right, dtype=np.float64) > 0.5
    splits_Gm = np.arange(right_Gm.shape[1])[None] if splits is None else np.asarray(splits)
    if splits is not None and splits_Gm.shape != right_Gm.shape:
        raise ValueError(f"splits {splits_Gm.shape} do not fit answers {right_Gm.shape}")
    earlier_Gmm = splits_Gm[:, None, :] < splits_Gm[:, :, None]
    before_Gm = (earlier_Gmm & right_Gm[:, None, :]).sum(axis=2)
    return np.where(right_Gm, np.power(0.5, before_Gm), 0.0)


def exit_advantages(rewards: ArrayLike) -> Array:
    """Return the advantage of every exit: its reward minus the mean of its thought, float64[G, m].

    Equal rewards give exactly 0: every answer wrong, or a single exit.
    """
    rewards_Gm = np.asarray(rewards, dtype=np.float64)
    # Measured from the first reward, equal rewards are exact zeros before any rounding of the mean.
    offset_Gm = rewards_Gm - rewards_Gm[:, :1]
    centred_Gm: Array = offset_Gm - offset_Gm.mean(axis=1, keepdims=True)
    return centred_Gm


def thought_advantages(advantages: ArrayLike) -> Array:
    """Return the advantage of the tokens between two exits, float64[G, m].

    Entry i is for the tokens after exit i - 1, up to exit i. They lie before exit i and all later
    exits, so they take the sum of those advantages. The sum over all exits of a thought is 0.
    Tokens before the first exit belong to every member of the group, and so they are not trained.
    """
    advantages_Gm = np.asarray(advantages, dtype=np.float64)
    later_Gm: Array = np.cumsum(advantages_Gm[:, ::-1], axis=1)[:, ::-1].copy()
    later_Gm[:, 0] = 0.0  # not the rounding error that the cumulative sum leaves
    return later_Gm
