"""Rewards in addition to correctness: for short right answers, and for thoughts that reflect.

Shapes: R answers of one question, K thoughts of a corpus.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rlsys.config.published import CLUSTER_GAP, KEYWORDS, TOKENS_PER_REFLECTION
from rlsys.errors import DataError

Array = NDArray[np.float64]


def length_reward(lengths: ArrayLike, correct: ArrayLike, kind: str) -> Array:
    """Return the length reward of every answer of one question, float64[R].

    With x from 0 (shortest) to 1 (longest):

        kind            right      wrong             shortest and longest of   no difference
        length          0.5 - x    min(0, 0.5 - x)   all answers               0
        refined         0.5 - x    -0.5              the right answers         0 if right
        refined_paper   1 - x      0                 the right answers         1 if right

    `length` is the reward of Kimi k1.5 (arXiv 2501.12599, Section 2.3.3): a wrong answer gets more
    if it is short. The two refined rewards depend on the length of right answers only. They differ
    by a constant and give the same advantages, unless all right answers have the same length. In
    that case `refined`, the released code, pays as for a medium length: one right answer alone gets
    less than the shorter one of two. `refined_paper` pays as for the shortest.

    Args:
        lengths: [R] tokens of each answer, with its thought and EOS.
        correct: [R] whether each answer is right (above 0.5).
        kind: `length`, `refined` or `refined_paper`.

    Raises:
        ValueError: unknown kind, or not as many lengths as answers.
    """
    lengths_R = np.asarray(lengths, dtype=np.float64)
    correct_R = np.asarray(correct, dtype=np.float64) > 0.5
    if lengths_R.shape != correct_R.shape:
        raise ValueError(
            f"{lengths_R.size} lengths do not fit {correct_R.size} answers; give one length each"
        )
    match kind:
        case "length":
            x_R = _relative_length(lengths_R, lengths_R, no_difference=0.5)
            return np.where(correct_R, 0.5 - x_R, np.minimum(0.0, 0.5 - x_R))
        case "refined":
            x_R = _relative_length(lengths_R, lengths_R[correct_R], no_difference=0.5)
            return np.where(correct_R, 0.5 - x_R, -0.5)
        case "refined_paper":
            x_R = _relative_length(lengths_R, lengths_R[correct_R], no_difference=0.0)
            return np.where(correct_R, 1.0 - x_R, 0.0)
        case _:
            raise ValueError(
                f"length reward {kind!r} is unknown; use 'length', 'refined' or 'refined_paper'"
            )


def _relative_length(lengths_R: Array, range_K: Array, *, no_difference: float) -> Array:
    """Scale each length so that the shortest of `range_K` becomes 0 and the longest 1.

    If all lengths in `range_K` are equal, the result is `no_difference` everywhere.
    """
    if range_K.size == 0 or range_K.min() == range_K.max():
        return np.full_like(lengths_R, no_difference)
    x_R: Array = (lengths_R - range_K.min()) / (range_K.max() - range_K.min())
    return x_R


def count_reflections(
    text: str, mode: str, *, words: Sequence[str] = KEYWORDS, gap: int = CLUSTER_GAP
) -> int:
    """Return how often a thought reflects.

    Only the text after the last `<think>` (if there is one) and before the next `</think>` counts.
    Keywords on one line with at most `gap` characters between neighbours are one reflection. Case
    is ignored.

    Args:
        text: a thought, with or without think tokens around it and an answer after it.
        mode: `published` finds KEYWORDS anywhere, also inside other words ("attribute" contains
            "but"); `words` finds `words` only as whole words.
        words: the keywords of mode `words`. A keyword may also be a mark such as `?`.
        gap: maximum number of characters between two keywords of one reflection.

    Raises:
        ValueError: unknown mode, or `words` is empty or contains an empty word.
    """
    match mode:
        case "published":
            pattern = "|".join(KEYWORDS)
        case "words":
            if not words or not all(words):
                raise ValueError(
                    f"words {words!r} would be found everywhere; give at least one, none empty"
                )
            pattern = "|".join(map(_standing_alone, words))
        case _:
            raise ValueError(f"mode {mode!r} is unknown; use 'published' or 'words'")
    thought = text.rpartition("<think>")[2].partition("</think>")[0]
    reflections = 0
    last_end: int | None = None
    for match in re.finditer(pattern, thought, re.IGNORECASE):
        between = None if last_end is None else thought[last_end : match.start()]
        if between is None or len(between) > gap or "\n" in between:
            reflections += 1
        last_end = match.end()
    return reflections


def _standing_alone(word: str) -> str:
    """A pattern that finds `word` only as a whole word; a mark such as `?` needs no word limit."""
    before = r"(?<!\w)" if re.match(r"\w", word) else ""
    after = r"(?!\w)" if re.search(r"\w\Z", word) else ""
    return f"{before}{re.escape(word)}{after}"


def reflection_reward(
    count: int,
    tokens: int,
    tokens_per_reflection: float = TOKENS_PER_REFLECTION,
    *,
    scale: str = "code",
) -> float:
    """Return the reward for reflecting often enough. It does not increase beyond the threshold.

    Args:
        count: reflections of a thought.
        tokens: tokens of the thought; with 0 tokens the reward is the smallest.
        tokens_per_reflection: a thought with at most this many tokens per reflection gets the full
            reward; see `reflection_threshold`.
        scale: `code` is in [0, 1]; `paper` is the same minus 1, so the advantages are equal.

    Raises:
        ValueError: unknown scale.
    """
    reward = min(count / tokens * tokens_per_reflection, 1.0) if tokens > 0 else 0.0
    match scale:
        case "code":
            return reward
        case "paper":
            return reward - 1.0
        case _:
            raise ValueError(f"scale {scale!r} is unknown; use 'code' or 'paper'")


def reflection_threshold(
    counts: ArrayLike, tokens: ArrayLike, *, quantile: float = 0.2, method: str = "interval"
) -> float:
    """Return the threshold of `reflection_reward` for thoughts of the starting policy.

    A share `quantile` of these thoughts reflects more rarely than the threshold. A larger quantile
    gives a stricter threshold.

    Args:
        counts: [K] reflections of each thought.
        tokens: [K] tokens of each thought; thoughts without tokens are left out.
        quantile: share of thoughts below the threshold, in [0, 1].
        method: `interval`, as in the released code, takes the quantile of tokens per reflection; a
            thought without reflections counts with all its tokens. `density`, as in the paper,
            takes the quantile of reflections per token and returns its inverse. Both interpolate
            linearly between two thoughts, so their results differ.

    Raises:
        DataError: no thought has tokens; or, with `density`, the quantile is 0 because too many
            thoughts never reflect.
        ValueError: unknown method.
    """
    tokens_K = np.asarray(tokens, dtype=np.float64)
    counts_K = np.asarray(counts, dtype=np.float64)[tokens_K > 0]
    tokens_K = tokens_K[tokens_K > 0]
    if tokens_K.size == 0:
        raise DataError(
            "no thought of the corpus has tokens, so there is no threshold for reflections; "
            "sample thoughts from the starting policy"
        )
    match method:
        case "interval":
            interval_K = tokens_K / np.maximum(counts_K, 1.0)
            return float(np.quantile(interval_K, 1.0 - quantile))
        case "density":
            density = float(np.quantile(counts_K / tokens_K, quantile))
            if density == 0.0:
                raise DataError(
                    f"the {quantile} quantile of reflections per token is 0, because too many "
                    "thoughts of the corpus never reflect; use method 'interval' or a higher "
                    "quantile"
                )
            return 1.0 / density
        case _:
            raise ValueError(f"method {method!r} is unknown; use 'interval' or 'density'")
