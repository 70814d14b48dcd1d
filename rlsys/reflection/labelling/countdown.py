"""The teacher of Countdown searches. It follows their steps, so it is exact."""

from __future__ import annotations

from collections.abc import Iterator

from rlsys.algorithms.reflection import ChunkedThought
from rlsys.data.countdown import Step
from rlsys.errors import DataError
from rlsys.grading.countdown import countdown_gold
from rlsys.sft.countdown import Numbers, written_steps
from rlsys.types import Problem


def result_chunks(problem: Problem, thought: ChunkedThought) -> tuple[int, ...]:
    """Return the chunks, counted from 0, in which a search reaches its target.

    A search reaches its target with a step from two numbers, computed right, if these two are what
    is left of the given numbers after earlier steps of the thought, also computed right. The end
    of the step decides which chunk states the answer.

    Raises DataError if the problem's answer is not the text of a Countdown problem.
    """
    gold = countdown_gold(problem.answer)
    if gold is None:
        raise DataError(
            f"problem {problem.id!r} has the answer {problem.answer[:40]!r}, and teacher.type "
            "'countdown' needs given numbers and a target, such as '19,35,44->98'; choose another "
            "teacher.type or other data"
        )
    reached: set[Numbers] = {gold.numbers}
    stating: set[int] = set()
    for step, left, end in written_steps(thought.text):
        # A step may go on from any numbers that were reached: depth first from the newest ones,
        # breadth first or after a return from older ones.
        after = set(_after(step, reached))
        if left in after:
            reached.add(left)
        elif not left and (gold.target,) in after:
            stating.add(thought.chunk_of(end))
    return tuple(sorted(stating))


def _after(step: Step, reached: set[Numbers]) -> Iterator[Numbers]:
    """Yield what a step leaves of each of the numbers that have both its operands."""
    if not step.is_right:
        return
    for numbers in reached:
        rest = list(numbers)
        if step.left in rest:
            rest.remove(step.left)
            if step.right in rest:
                rest.remove(step.right)
                yield tuple(sorted([*rest, step.result]))
