"""Rewards beside correctness: how short a right answer was, and how much its thought reflected.

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

    `length` is Kimi k1.5's (arXiv 2501.12599, Section 2.3.3): a wrong answer earns by being short.
    The refined ones pay only for right answers; a constant apart, they give the same advantages
    unless all right answers are equally long. There the code pays as for a middling length, so a
    lone right answer earns less than the better of two, and the paper's formula as for the best.

    Args:
        lengths: [R] tokens, not characters, of each answer with its thought and EOS.
        correct: [R] whether each answer is right (above 0.5).
        kind: `length`, `refined` or `refined_paper`.

    Raises:
        ValueError: unknown kind, or not as many lengths as answers.
    """
    lengths_R = np.asarray(lengths, dtype=np.float64)
    correct_R = np.asarray(correct, dtype=np.float64) > 0.5
    if lengths_R.shape != correct_R.shape:
        raise ValueError(f"{lengths_R.size} lengths for {correct_R.size} answers")
    match kind:
        case "length":
            place_R = _place(lengths_R, lengths_R, undecided=0.5)
            return np.where(correct_R, 0.5 - place_R, np.minimum(0.0, 0.5 - place_R))
        case "refined":
            place_R = _place(lengths_R, lengths_R[correct_R], undecided=0.5)
            return np.where(correct_R, 0.5 - place_R, -0.5)
        case "refined_paper":
            place_R = _place(lengths_R, lengths_R[correct_R], undecided=0.0)
            return np.where(correct_R, 1.0 - place_R, 0.0)
        case _:
            raise ValueError(
                f"length reward {kind!r} is unknown; use 'length', 'refined' or 'refined_paper'"
            )


def _place(lengths_R: Array, among_K: Array, *, undecided: float) -> Array:
    """Where each length lies between the shortest (0) and the longest (1) of `among_K`."""
    if among_K.size == 0 or among_K.min() == among_K.max():
        return np.full_like(lengths_R, undecided)
    place_R: Array = (lengths_R - among_K.min()) / (among_K.max() - among_K.min())
    return place_R


def count_reflections(
    text: str, mode: str, *, words: Sequence[str] = KEYWORDS, gap: int = CLUSTER_GAP
) -> int:
    """Return how often a thought reflects.

    Counted is what stands after the last `<think>`, if there is one, up to the next `</think>`.
    Keywords on one line with at most `gap` characters between each and the next are one reflection.
    Case is ignored.

    Args:
        text: a thought, with or without think tokens around it and the answer behind it.
        mode: `published` looks for KEYWORDS anywhere, also inside other words ("distribution" has
            a "but"); `words` looks for `words` where they stand by themselves.
        words: what `words` counts. A word may be a mark such as `?`, which needs no limits.
        gap: characters that join two keywords into one reflection, at most.

    Raises:
        ValueError: unknown mode, or `words` that would be found everywhere.
    """
    match mode:
        case "published":
            pattern = "|".join(KEYWORDS)
        case "words":
            if not words or not all(words):
                raise ValueError(
                    f"words {words!r} are found everywhere; name at least one, none empty"
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
    """A pattern for `word` that does not continue as a longer word on either side."""
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
    """Return the reward for reflecting often enough; more than enough earns nothing on top.

    Args:
        count: reflections of a thought.
        tokens: its tokens; a thought of none reflects too little.
        tokens_per_reflection: the rarest that is often enough; see `reflection_threshold`.
        scale: `code` is in [0, 1], `paper` the same minus 1. Advantages do not see the difference.

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
    """Return the tokens per reflection that the starting policy's own thoughts set as threshold.

    A share `quantile` of them reflects more rarely: a higher one makes a stricter threshold.

    Args:
        counts: [K] reflections of each thought.
        tokens: [K] tokens of each thought; thoughts without tokens are left out.
        quantile: share of thoughts that fall short, in [0, 1].
        method: `interval`, the released code's, takes the quantile of tokens per reflection, a
            thought without reflection standing in with all its tokens. `density`, the paper's,
            takes the quantile of reflections per token, and the inverse of it. Between two
            thoughts both interpolate linearly, which is why they differ.

    Raises:
        DataError: no thought has tokens, or by `density` so many thoughts never reflect that any
            thought would reflect often enough.
        ValueError: unknown method.
    """
    tokens_K = np.asarray(tokens, dtype=np.float64)
    counts_K = np.asarray(counts, dtype=np.float64)[tokens_K > 0]
    tokens_K = tokens_K[tokens_K > 0]
    if tokens_K.size == 0:
        raise DataError(
            "no thought of the corpus has tokens, so it sets no threshold for reflections; "
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
