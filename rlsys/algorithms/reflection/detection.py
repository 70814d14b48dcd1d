"""What the reflection model said about each chunk, and after which chunk to cut.

The reflection model answers `[i]. Think` or `[i]. Result` for every chunk i = 1..N; a `Result`
chunk states an answer, and what follows the first good one is overthinking. The candidates that the
engine weighed at the label, not the label itself, give a probability that can be thresholded.

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
"""What the reply is made to begin with, so that the first generated label is the first chunk's."""
SURE: Final = 0.5
"""Probability from which a chunk counts as stating an answer."""
HINT: Final = 0.25
"""Probability from which the strong rule considers a chunk."""

_NUMBER: Final = re.compile(r"\[(\d{1,9})\]\.")


def label_probability(
    candidates: Candidates, *, think: str = THINK, result: str = RESULT
) -> float | None:
    """Return the probability of `Result` against `Think` at one position, in [0, 1].

    The share of the candidates that contain `result` in those that contain either word, ignoring
    case; one that contains both counts for `think`, which never cuts too early. None where the
    position is no label: no candidate of any probability, or the most likely one contains neither
    word as spelt here.

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
        # Relative to the most likely one: neither sum can vanish, and the share is the same.
        if think.lower() in text.lower():
            thinks += math.exp(logprob - top_logprob)
        elif result.lower() in text.lower():
            results += math.exp(logprob - top_logprob)
    return results / (thinks + results)


class LabelReading(NamedTuple):
    """The labels of a reply by the chunk they name."""

    probabilities_N: NDArray[np.float64]
    """Probability that each chunk states an answer; 0 where the reply does not say."""
    missing: int
    """Chunks without a label: taken for reasoning, which never cuts too early."""
    extra: int
    """Labels that were ignored: no new number before them, or the number of no or a read chunk."""


def read_labels(
    positions: Iterable[Candidates],
    num_chunks: int,
    *,
    prefill: str = PREFILL,
    think: str = THINK,
    result: str = RESULT,
    stopped: bool = False,
) -> LabelReading:
    """Read a greedy reply and match its labels to the chunk numbers `[i].` before them.

    The number counts, not the order of the labels: a skipped or repeated line must not shift every
    later probability by one chunk. The first label of a chunk stands.

    Args:
        positions: candidates of every generated position; the most likely one was generated.
        num_chunks: N, how many chunks the prompt numbered.
        prefill: what the reply was made to begin with.
        think: see `label_probability`.
        result: see `label_probability`.
        stopped: the reply was ended at a label; chunks behind that one are not missing.
    """
    probabilities_N = np.zeros(num_chunks)
    read: set[int] = set()
    extra = 0
    unread = prefill
    for candidates in positions:
        probability = label_probability(candidates, think=think, result=result)
        if probability is None:
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
    asked = max(read) + 1 if stopped and read else num_chunks
    return LabelReading(probabilities_N, asked - len(read), extra)


def last_cut(num_chunks: int) -> int:
    """Return the last chunk that a cut may keep: of N chunks one in twenty goes, five at most."""
    return num_chunks - 1 - min((num_chunks + 10) // 20, 5)


def cut_index(p: Sequence[float], strength: str) -> int:
    """Return the last chunk to keep, counted from 0 and at most `last_cut(N)`.

    Args:
        p: [N] probability that each chunk states an answer.
        strength: `normal`, used in training, is the first sure chunk in the second half. `weak`
            goes on to where the answer is stated once more: the first sure chunk after normal's
            run of sure ones, or else the end of that run. `strong` is the most probable chunk up
            to normal's that has at least a hint. `first` is the paper's rule, the first sure chunk
            anywhere. What finds nothing takes normal's chunk, and normal itself `last_cut(N)`.

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
            # Without a sure chunk every chunk is a candidate.
            hints_K = p_N if normal is None else p_N[: normal + 1]
            cut = int(hints_K.argmax()) if hints_K.max() >= HINT else normal
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
    """The first sure chunk after the run of sure ones from `first` on, or the end of the run."""
    unsure = np.flatnonzero(p_N[first:] < SURE)
    if len(unsure) == 0:
        return len(p_N) - 1
    after_run = first + int(unsure[0])
    again = _first_sure(p_N, after_run)
    return after_run - 1 if again is None else again
