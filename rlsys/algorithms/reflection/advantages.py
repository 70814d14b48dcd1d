"""Advantages of originals and revisions, which share one group and one baseline.

Rows of a question are o1 r1 o2 r2 ... : sampled path and revision of each of G samples. The two
share the tokens up to the cut, so a better revision holds only the removed tail against the
original.

Shapes: 2G rows of one question, R rows of several questions (R even), G pairs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rlsys.algorithms import grpo

Array = NDArray[np.float64]

RIGHT = 0.5
"""An accuracy above this is a right answer."""
SHORTER = 2
"""Tokens that a revision must save before its tail is worth a loss of its own."""


def repair_sources(accuracy: ArrayLike) -> NDArray[np.int64]:
    """Return the row that each row is trained as, int64[R].

    A revision that is not right is replaced by its original, everything about it: the group keeps
    its size, and a failed revision never makes an overthinking tail look good. Apply it to
    accuracies and tokens, and take rewards from what they are then (`rea.pair_advantages`):

        accuracy[repair_sources(accuracy)]

    The released code takes rewards first and replaces them, too. For refined length rewards that is
    the same; with `length` a wrong short revision would move the shortest.

    Args:
        accuracy: [R] of rows o1 r1 o2 r2 ... before any replacement.
    """
    accuracy_R = np.asarray(accuracy, dtype=np.float64)
    rows_R = np.arange(len(accuracy_R))
    failed_R = (rows_R % 2 == 1) & (accuracy_R <= RIGHT)
    sources_R: NDArray[np.int64] = rows_R - failed_R
    return sources_R


def truncation_accuracy(accuracy: ArrayLike) -> float:
    """Return the share of pairs that lost nothing: the revision is right or the original was wrong.

    Args:
        accuracy: [R] of rows o1 r1 o2 r2 ... before any replacement, at least one pair.
    """
    right_R = np.asarray(accuracy, dtype=np.float64) > RIGHT
    if not len(right_R):
        raise ValueError("no pair of an original and a revision, so no share of them")
    return float(np.mean(right_R[1::2] | ~right_R[0::2]))


def revision_advantages(rewards: ArrayLike, accuracy: ArrayLike) -> Array:
    """Return the advantage of every row of one question, float64[2G].

    (reward - mean) / (deviation + 1e-4) over all 2G rows, with the sample deviation. Where every
    answer is wrong all advantages are 0: length and reflection alone must not teach.

    Args:
        rewards: [2G] summed rewards of rows o1 r1 o2 r2 ..., after `repair_sources`.
        accuracy: [2G] of the same rows, after `repair_sources`.

    Raises:
        ValueError: not as many rewards as accuracies.
    """
    if np.shape(rewards) != np.shape(accuracy):
        raise ValueError(f"rewards {np.shape(rewards)} of answers {np.shape(accuracy)}")
    if not np.any(np.asarray(accuracy)):
        return np.zeros(np.shape(rewards))
    return grpo.advantages(rewards, scale="std")


class TreeAdvantages(NamedTuple):
    """The two rows of each pair on the tree that holds their common tokens once."""

    kept_G: Array
    """On the tokens up to the cut: both rows train them, so the sum of the two advantages."""
    tail_G: Array
    """On the tokens of the original after the cut."""
    ending_G: Array
    """On the sampled tokens of the revision; 0 where it was replaced by its original."""


def tree_advantages(advantages: ArrayLike, sources: ArrayLike) -> TreeAdvantages:
    """Return what the loss over 2G separate rows puts on each part of the G trees.

    Exact while the ratio of new to old policy is inside the clip, at the first step always. A
    mean over tokens counts the kept tokens twice, for each row once, and where the revision was
    replaced those of the tail as well.

    Args:
        advantages: [R] of rows o1 r1 o2 r2 ..., from `revision_advantages`.
        sources: [R] from `repair_sources`.
    """
    original_G = np.asarray(advantages, dtype=np.float64)[0::2]
    revision_G = np.asarray(advantages, dtype=np.float64)[1::2]
    sources_R = np.asarray(sources)
    replaced_G = sources_R[1::2] == sources_R[0::2]
    return TreeAdvantages(
        kept_G=original_G + revision_G,
        tail_G=np.where(replaced_G, original_G + revision_G, original_G),
        ending_G=np.where(replaced_G, 0.0, revision_G),
    )


def tail_advantages(
    advantages: ArrayLike, accuracy: ArrayLike, thought_tokens: ArrayLike, *, scale: str
) -> Array:
    """Return the advantage of every row in the optional tail loss, float64[R].

    The tail loss is the same clipped loss once more, on the tokens of a pair from where the
    revision's thought ends: the original's go down, the revision's up. It applies to pairs with a
    right revision whose thought is at least SHORTER tokens shorter; all other rows get 0.

    Args:
        advantages: [R] ordinary advantages of the whole batch, rows o1 r1 o2 r2 ...; they set the
            size.
        accuracy: [R] of the same rows.
        thought_tokens: [R] tokens of each row's thought.
        scale: size by the `mean` or by the `max` of the absolute advantages.

    Raises:
        ValueError: unknown scale.
    """
    size_R = np.abs(np.asarray(advantages, dtype=np.float64))
    match scale:
        case "mean":
            size = size_R.mean()
        case "max":
            size = size_R.max()
        case _:
            raise ValueError(f"scale {scale!r} is unknown; use 'mean' or 'max'")
    tokens_R = np.asarray(thought_tokens)
    shorter_G = tokens_R[0::2] - tokens_R[1::2] >= SHORTER
    applies_G = shorter_G & (np.asarray(accuracy, dtype=np.float64)[1::2] > RIGHT)
    tail_R = np.zeros(len(size_R))
    tail_R[0::2] = np.where(applies_G, -size, 0.0)
    tail_R[1::2] = np.where(applies_G, size, 0.0)
    return tail_R
