"""Which of a problem's sampled answers are the same, for votes of the majority."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rlsys.grading.compare import decide
from rlsys.types import Verdict

RIGHT = 0
"""The number of all right answers: each of them equals the gold answer."""


def vote_numbers(answers: Iterable[tuple[str | None, bool]]) -> Mapping[str, int]:
    """Return a number for every wrong answer of one problem; equal answers share it.

    Answers are equal if they have the same text, or if the exact rules of grading find their values
    equal (`1/2` and `0.5`). Computer algebra is not asked: it would be called for every pair.

    Args:
        answers: text and correctness of all answers to the problem. Right answers need no
            number: theirs is `RIGHT`.
    """
    numbers: dict[str, int] = {}
    first: list[str] = []
    """Of every number after RIGHT, the answer that was found first."""
    for text, right in answers:
        if right or text is None or not text.strip() or text in numbers:
            continue
        equal = (i for i, known in enumerate(first) if decide(text, known) is Verdict.RIGHT)
        place = next(equal, None)
        if place is None:
            place = len(first)
            first.append(text)
        numbers[text] = place + 1
    return numbers
