"""Read the labels of the reflection model, and choose the chunk after which to cut.

The reflection model writes `[i]. Think` or `[i]. Result` for every chunk i = 1..N. A `Result` chunk
states an answer; text after the first right answer is overthinking. The generated label alone is
only yes or no. The log-probs of the candidate tokens at that position give a probability, which can
be compared with a threshold.

Shapes: N chunks, counted from 0 here and from 1 in the reply.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Candidates = Sequence[tuple[float, str]]
"""(log-prob, text) of the most likely tokens at one generated position, in any order."""
Strength = Literal["normal", "weak", "strong", "first"]

THINK: Final = "Think"
RESULT: Final = "Result"
PREFILL: Final = "[1]."
"""Start of every reply, given in the prompt, so that the first generated token labels chunk 1."""
SURE: Final = 0.5
"""A chunk with at least this probability is taken to state an answer."""
HINT: Final = 0.25
"""The rule `strong` considers only chunks with at least this probability."""

_NUMBER: Final = re.compile(r"\[(\d{1,9})\]\.")


def label_probability(
    candidates: Candidates, *, think: str = THINK, result: str = RESULT
) -> float | None:
    """Return the probability of `Result` relative to `Think` at one position, in [0, 1].

    The probability of all candidates that contain `result`, divided by the probability of all that
    contain either word, ignoring case. A candidate with both words counts for `think`, because a
    missed result only makes the cut later. Returns None if the position is not a label: there is no
    candidate with a probability above 0, or the most likely one contains neither word (here the
    case matters).

    Args:
        candidates: (log-prob, text) of the most likely tokens at this position.
        think: the label of a chunk that only reasons.
        result: the label of a chunk that states an answer.
    """
    top_logprob, top_text = max(candidates, key=lambda c: c[0], default=(-math.inf, ""))
    if top_logprob == -math.inf:
        return None
    if think not in top_text and result not in top_text:
        return None
    thinks = results = 0.0
    for logprob, text in candidates:
        # Divide by the largest probability before exp. The ratio stays the same, and the sum cannot
        # underflow to 0.
        if think.lower() in text.lower():
            thinks += math.exp(logprob - top_logprob)
        elif result.lower() in text.lower():
            results += math.exp(logprob - top_logprob)
    return results / (thinks + results)


class LabelReading(NamedTuple):
    """The labels of a reply, by chunk."""

    probabilities_N: NDArray[np.float64]
    """Probability that each chunk states an answer; 0 for a chunk without a label."""
    missing: int
    """Chunks without a label. They count as reasoning, so they never make a cut too early."""
    extra: int
    """Ignored labels: without a number, or with the number of no chunk or of a labelled chunk."""


def read_labels(
    positions: Iterable[Candidates],
    num_chunks: int,
    *,
    prefill: str = PREFILL,
    think: str = THINK,
    result: str = RESULT,
    stopped: bool = False,
) -> LabelReading:
    """Read a greedy reply and assign each label to the chunk number `[i].` before it.

    If a chunk has two labels, the first one counts.

    Args:
        positions: candidates of every generated position; the most likely one was generated.
        num_chunks: N, the number of chunks in the prompt.
        prefill: start of the reply that was given in the prompt.
        think: see `label_probability`.
        result: see `label_probability`.
        stopped: True if generation was stopped at a label on purpose. The chunks after that label
            then do not count as missing.
    """
    probabilities_N = np.zeros(num_chunks)
    read: set[int] = set()
    extra = 0
    # Text since the last label. It holds the chunk number of the next label. Counting labels would
    # be simpler, but one skipped or repeated line would then shift every later label by one chunk.
    unread = prefill
    for candidates in positions:
        probability = label_probability(candidates, think=think, result=result)
        if probability is None:
            # Greedy decoding: the most likely candidate is the generated token.
            unread += max(candidates, key=lambda candidate: candidate[0])[1] if candidates else ""
            continue
        numbers = _NUMBER.findall(unread)
        chunk = int(numbers[-1]) - 1 if numbers else None
        if chunk is not None and 0 <= chunk < num_chunks and chunk not in read:
            probabilities_N[chunk] = probability
            read.add(chunk)
        else:
            extra += 1
        unread = ""
    expected = max(read) + 1 if stopped and read else num_chunks
    return LabelReading(probabilities_N, expected - len(read), extra)


def last_cut(num_chunks: int) -> int:
    """Return the last chunk that a cut may keep, counted from 0.

    A cut drops at least N / 20 chunks, rounded; this minimum is never more than 5.
    """
    # Short thoughts (N < 10) round to 0: then the last chunk may be kept.
    return num_chunks - 1 - min((num_chunks + 10) // 20, 5)


def cut_index(p: Sequence[float], strength: str) -> int:
    """Return the last chunk to keep, counted from 0 and at most `last_cut(N)`.

    Args:
        p: [N] probability that each chunk states an answer. A chunk is sure if p >= SURE.
        strength: rule that chooses the chunk.
            `normal`: the first sure chunk in the second half of the thought.
            `weak`: later than `normal`, where the answer is stated again. This is the first sure
            chunk after the run of sure chunks that `normal` starts, or the end of that run if no
            sure chunk follows.
            `strong`: earlier than `normal`: the most probable chunk up to that of `normal`, if its
            probability is at least HINT.
            `first`: the rule of the paper, the first sure chunk anywhere.
            If `strong` finds no chunk, it uses that of `normal`. If the other rules find none, they
            use `last_cut(N)`.

    Raises:
        ValueError: no chunks, or an unknown strength.
    """
    if len(p) == 0:
        raise ValueError("a thought without chunks cannot be cut; keep the original")
    p_N = np.asarray(p, dtype=np.float64)
    limit = last_cut(len(p_N))
    second_half = (len(p_N) + 1) // 2
    normal = _first_sure(p_N, second_half)
    match strength:
        case "normal":
            cut = normal
        case "weak":
            cut = None if normal is None else _stated_again(p_N, normal)
        case "strong":
            # Without a sure chunk in the second half, every chunk is a candidate.
            candidates_K = p_N if normal is None else p_N[: normal + 1]
            cut = int(candidates_K.argmax()) if candidates_K.max() >= HINT else normal
        case "first":
            cut = _first_sure(p_N, 0)
        case _:
            raise ValueError(
                f"strength {strength!r} is unknown; use 'normal', 'weak', 'strong' or 'first'"
            )
    return limit if cut is None else min(cut, limit)


def _first_sure(p_N: NDArray[np.float64], start: int) -> int | None:
    """The first sure chunk from `start` on, or None."""
    sure = np.flatnonzero(p_N[start:] >= SURE)
    return start + int(sure[0]) if len(sure) else None


def _stated_again(p_N: NDArray[np.float64], first: int) -> int:
    """The first sure chunk after the run of sure chunks that starts at `first`.

    If there is none, the last chunk of the run.
    """
    unsure = np.flatnonzero(p_N[first:] < SURE)
    if len(unsure) == 0:
        return len(p_N) - 1
    after_run = first + int(unsure[0])
    again = _first_sure(p_N, after_run)
    return after_run - 1 if again is None else again
