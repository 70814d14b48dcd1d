"""The teacher of the arithmetic corpus: where a thought states the right total is in its text."""

from __future__ import annotations

import re
from typing import Final

from rlsys.algorithms.reflection import ChunkedThought
from rlsys.data.arithmetic import signed_terms
from rlsys.sft.traces import RECHECK_MARK, STEP_MARK
from rlsys.types import Problem

_STEP: Final = re.compile(rf"[^{STEP_MARK}{RECHECK_MARK}]+")
_TOTAL: Final = re.compile(r"(?:(-?\d+[+-]\d+)=)?(-?\d+)")


def result_chunks(problem: Problem, thought: ChunkedThought) -> tuple[int, ...]:
    """Return the chunks, counted from 0, that state the right answer of an arithmetic problem.

    A chain of steps, terse or verbose, concludes with the step that brings in the problem's last
    number; a check does the same step once more, a re-check begins a new chain. A chunk states the
    answer if a chain concludes in it with the gold total: totals on the way do not count, even if
    they happen to be equal, and neither does a conclusion that a slip has spoilt, or one that was
    cut off.
    """
    steps_of_chain = len(signed_terms(problem.text)) - 1
    ends = [thought.pieces[chunk[-1]].end for chunk in thought.chunks]
    stating: set[int] = set()
    step, done = 0, ""
    for match in _STEP.finditer(thought.text):
        before, after = thought.text[: match.start()][-1:], thought.text[match.end() :][:1]
        total = _TOTAL.fullmatch(match.group())
        doing = (total and total.group(1)) or ""
        # A whole chain can begin with the operands that the last one ended with; it goes on, then.
        again = (
            doing != "" and doing == done and not (step == steps_of_chain and after == STEP_MARK)
        )
        if before != RECHECK_MARK:
            step += 1
        elif not again:
            step = 1
        done = doing
        if step == steps_of_chain and total and int(total.group(2)) == int(problem.answer):
            stating.add(next(i for i, end in enumerate(ends) if match.end() <= end))
    return tuple(sorted(stating))
