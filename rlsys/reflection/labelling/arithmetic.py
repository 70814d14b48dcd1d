"""The teacher of the arithmetic corpus. It parses the thought, so it is exact."""

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

    A chain adds the numbers of the problem step by step, terse or verbose. Its last step, which
    adds the last number, is its conclusion. A check repeats the previous step. A re-check begins a
    new chain. A chunk states the answer if it contains the conclusion of a chain and the total is
    right. Three cases do not count: an intermediate total that happens to equal the answer, a wrong
    conclusion, and a conclusion that was cut off.
    """
    steps_of_chain = len(signed_terms(problem.text)) - 1
    stating: set[int] = set()
    step, last_operands = 0, ""
    for match in _STEP.finditer(thought.text):
        before, after = thought.text[: match.start()][-1:], thought.text[match.end() :][:1]
        total = _TOTAL.fullmatch(match.group())
        operands = (total and total.group(1)) or ""
        # A `?` starts a check or a re-check. The same operands as in the step before mean a check.
        # One exception: a new chain may begin with the operands of the last step of the old chain.
        # A `;` after it shows that this chain continues, so it is a re-check.
        is_check = (
            operands != ""
            and operands == last_operands
            and not (step == steps_of_chain and after == STEP_MARK)
        )
        if before != RECHECK_MARK:
            step += 1
        elif not is_check:
            step = 1
        last_operands = operands
        if step == steps_of_chain and total and int(total.group(2)) == int(problem.answer):
            stating.add(thought.chunk_of(match.end()))
    return tuple(sorted(stating))
