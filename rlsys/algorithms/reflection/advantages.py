"""Advantages of originals and revisions, which share one group and one baseline.

Rows of a question are o1 r1 o2 r2 ... : the sampled path and the revision of each of G samples.
Both contain the same tokens up to the cut. So the difference of their advantages falls only on the
tokens after the cut.

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
"""Tokens that a revision must save before the tail loss applies to its pair."""


def repair_sources(accuracy: ArrayLike) -> NDArray[np.int64]:
    """Return for every row the index of the row that is trained in its place, int64[R].

    A revision that is not right is replaced by its original in every respect. The group keeps its
    size, and a failed revision cannot give its original a positive advantage for overthinking.
    Apply the result to accuracies and token counts, then compute the rewards from the replaced
    values (see `rea.pair_advantages`):

        accuracy[repair_sources(accuracy)]

    The released code computes the rewards first and then replaces the rewards too. For the refined
    length rewards the result is the same. With `length` it is not: there a wrong, short revision
    would change the shortest length.

    Args:
        accuracy: [R] of rows o1 r1 o2 r2 ... before any replacement.
    """
    accuracy_R = np.asarray(accuracy, dtype=np.float64)
    rows_R = np.arange(len(accuracy_R))
    failed_R = (rows_R % 2 == 1) & (accuracy_R <= RIGHT)
    sources_R: NDArray[np.int64] = rows_R - failed_R
    return sources_R


def truncation_accuracy(accuracy: ArrayLike) -> float:
    """Return the share of pairs in which the revision is right or the original is wrong.

    Args:
        accuracy: [R] of rows o1 r1 o2 r2 ... before any replacement, at least one pair.
    """
    right_R = np.asarray(accuracy, dtype=np.float64) > RIGHT
    if not len(right_R):
        raise ValueError(
            "accuracy is empty, so it has no share of right pairs; give at least one pair"
        )
    return float(np.mean(right_R[1::2] | ~right_R[0::2]))


def revision_advantages(rewards: ArrayLike, accuracy: ArrayLike) -> Array:
    """Return the advantage of every row of one question, float64[2G].

    (reward - mean) / (deviation + 1e-4) over all 2G rows, with the sample deviation. If every
    answer is wrong, all advantages are 0: rewards for length and reflection alone must not train a
    policy that never answers right.

    Args:
        rewards: [2G] summed rewards of rows o1 r1 o2 r2 ..., after `repair_sources`.
        accuracy: [2G] of the same rows, after `repair_sources`.

    Raises:
        ValueError: not as many rewards as accuracies.
    """
    if np.shape(rewards) != np.shape(accuracy):
        raise ValueError(
            f"rewards of shape {np.shape(rewards)} do not fit accuracies of shape "
            f"{np.shape(accuracy)}; give one reward per answer"
        )
    if not np.any(np.asarray(accuracy)):
        return np.zeros(np.shape(rewards))
    return grpo.advantages(rewards, scale="std")


class TreeAdvantages(NamedTuple):
    """Advantages of G pairs on trees that store the common tokens of both rows once."""

    kept_G: Array
    """Of the tokens up to the cut: the sum of both advantages, because both rows train them."""
    tail_G: Array
    """Of the tokens of the original after the cut."""
    ending_G: Array
    """Of the sampled tokens of the revision; 0 if it was replaced by its original."""


def tree_advantages(advantages: ArrayLike, sources: ArrayLike) -> TreeAdvantages:
    """Return the advantages of G trees that train like 2G separate rows.

    This is exact while the ratio of new to old policy is inside the clip interval, so it is always
    exact at the first optimizer step. A mean over tokens must count the kept tokens twice, once for
    each row. If the revision was replaced, it must count the tail twice too.

    Args:
        advantages: [R] of rows o1 r1 o2 r2 ..., from `revision_advantages`.
        sources: [R] from `repair_sources`.
    """
    original_G = np.asarray(advantages, dtype=np.float64)[0::2]
    revision_G = np.asarray(advantages, dtype=np.float64)[1::2]
    sources_R = np.asarray(sources)
    replaced_G = sources_R[1::2] == sources_R[0::2]
    # A replaced revision has the tail of its original, so the tail then belongs to both rows.
    return TreeAdvantages(
        kept_G=original_G + revision_G,
        tail_G=np.where(replaced_G, original_G + revision_G, original_G),
        ending_G=np.where(replaced_G, 0.0, revision_G),
    )


def tail_advantages(
    advantages: ArrayLike, accuracy: ArrayLike, thought_tokens: ArrayLike, *, scale: str
) -> Array:
    """Return the advantage of every row in the optional tail loss, float64[R].

    The tail loss repeats the clipped loss on the tokens after the cut of a pair. It lowers the
    probability of the original's tokens and raises that of the revision's tokens. It applies to
    pairs with a right revision whose thought is at least SHORTER tokens shorter. All other rows
    get 0.

    Args:
        advantages: [R] ordinary advantages of the whole batch, rows o1 r1 o2 r2 ...; the size of
            the result follows from them.
        accuracy: [R] of the same rows.
        thought_tokens: [R] tokens of each row's thought.
        scale: `mean` or `max` of the absolute advantages is the size of the result.

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
