"""Written searches for the target of a Countdown problem, in the spirit of Stream of Search.

Gandhi et al., *Stream of Search: Learning to Search in Language* (arXiv 2404.03683), train a small
model on texts of whole searches, with dead ends and backtracking. The notation here is our own and
short, because every character is a token of the tiny tokenizer:

    19,35,44->98                      the problem
    44-19=25:25,35                    a step, and the numbers that are left after it
    ;25+35=60;35-25=10;25*35=875      the last steps: no numbers are left, none is 98
    <19,35,44                         back to these numbers
    ;44+35=79:19,79;79+19=98          another step, and a last step that reaches 98
    !44+35=79;79+19=98                the steps of the solution; the answer is (44+35)+19

A search goes depth first (it follows each step at once) or breadth first (it writes all steps from
some numbers, then goes to the numbers after each of them). From three or more numbers it tries the
`width` steps that a heuristic puts first: those that leave a number near to the target, or near to
a factor of the target. A blind search tries steps in random order. The last steps, from two
numbers, are always tried in the same order.

A narrow search may miss the target, and a long one gives up. It then ends with `?` and the steps of
the nearest result, and its answer is wrong. Such failures and long detours are what reinforcement
learning can improve.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import Final, NamedTuple

import numpy as np

from rlsys.config import SearchHabits
from rlsys.data.countdown import Puzzle, Step, expression, steps_between

NEXT, LEFT, BACK, FOUND, FAILED = ";", ":", "<", "!", "?"
"""Marks: before a step, before the numbers left, of a return, of a solution, of giving up."""

_STEP: Final = re.compile(rf"(\d+)([-+*/])(\d+)=(\d+)(?=(?:{LEFT}(\d+(?:,\d+)*))?)")
"""The numbers left are only looked at: in a garbled thought the last of them can begin a step."""

Numbers = tuple[int, ...]
Heuristic = Callable[[Numbers, int], float]
"""Estimates how far numbers are from a target; smaller is better."""


class Node(NamedTuple):
    """A place in the search: the numbers that are left, sorted, and the steps that led there."""

    numbers: Numbers
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True)
class SearchTrace:
    """A written search; the end-of-thought token is not part of it."""

    puzzle: Puzzle
    thought: str
    steps: tuple[Step, ...]
    """Steps of the solution; of the nearest result if the search failed."""
    solved: bool

    @property
    def answer(self) -> str:
        """The expression that the search ends with."""
        return expression(self.puzzle.numbers, self.steps)


def draw_search(puzzle: Puzzle, rng: np.random.Generator, habits: SearchHabits) -> SearchTrace:
    """Draw order, heuristic and width of a search, and write it."""
    breadth_first, blind = rng.random(2) < (habits.breadth_first, habits.blind)
    heuristic = None if blind else HEURISTICS[rng.integers(len(HEURISTICS))]
    search = _Search(
        target=puzzle.target,
        width=int(rng.integers(habits.width[0], habits.width[1] + 1)),
        longest=habits.longest,
        heuristic=heuristic,
        rng=rng,
    )
    root = Node(tuple(sorted(puzzle.numbers)))
    if breadth_first:
        search.breadth_first(root)
    else:
        search.depth_first(root)
    return search.trace(puzzle)


def written_steps(thought: str) -> Iterator[tuple[Step, Numbers, int]]:
    """Yield the steps in a thought, right or wrong.

    With each step come the numbers that the thought says are left after it, sorted, none after a
    last step; and the place in the text where its result ends.
    """
    for match in _STEP.finditer(thought):
        left, sign, right, result, rest = match.groups()
        step = Step(int(left), sign, int(right), int(result))
        yield step, tuple(sorted(map(int, rest.split(",")))) if rest else (), match.end()


def nearest_number(numbers: Numbers, target: int) -> float:
    """Return the distance of the target from the nearest number."""
    return min(abs(number - target) for number in numbers)


def nearest_factor(numbers: Numbers, target: int) -> float:
    """Return the smallest distance of a number from a factor of the target other than 1."""
    return min(abs(number - factor) for number in numbers for factor in _factors(target))


HEURISTICS: Final[tuple[Heuristic, ...]] = (nearest_number, nearest_factor)


class _Search:
    """Writes one search as text, and remembers the nearest result."""

    def __init__(
        self,
        *,
        target: int,
        width: int,
        longest: int,
        heuristic: Heuristic | None,
        rng: np.random.Generator,
    ) -> None:
        """Try at most `width` steps from a node; no heuristic means random order."""
        self._target = target
        self._width = width
        self._longest = longest
        self._heuristic = heuristic
        self._rng = rng
        self._parts: list[str] = []
        self._length = 0
        self._best: Node | None = None
        """The node with the nearest result so far."""
        self._last = Node(())
        """The node that was written last."""

    def depth_first(self, node: Node) -> bool:
        """Follow each step at once, returning to `node` before the next; True ends the search."""
        for number, child in enumerate(self._children(node)):
            if number and len(child.numbers) > 1:
                self._write(BACK + _joined(node.numbers))
            if self._visit(child) or (len(child.numbers) > 1 and self.depth_first(child)):
                return True
        return False

    def breadth_first(self, root: Node) -> None:
        """Write all steps from some numbers before going to the numbers after any of them."""
        waiting = deque([root])
        while waiting:
            node = waiting.popleft()
            if node is not root:
                self._write(BACK + _joined(node.numbers))
            for child in self._children(node):
                if self._visit(child):
                    return
                if len(child.numbers) > 1:
                    waiting.append(child)

    def trace(self, puzzle: Puzzle) -> SearchTrace:
        """Return the search with its conclusion."""
        while self._best is None:
            # It gave up before its first result, and has to answer something: take the first steps.
            self._visit(self._children(self._last)[0])
        best = self._best
        solved = best.numbers == (self._target,)
        mark = FOUND if solved else FAILED
        thought = "".join(self._parts) + mark + NEXT.join(step.text for step in best.steps)
        return SearchTrace(puzzle, thought.removeprefix(NEXT), best.steps, solved)

    def _visit(self, node: Node) -> bool:
        """Write the last step of a node and the numbers it leaves; True ends the search.

        A search ends at its target, or when it has become too long.
        """
        self._last = node
        text = NEXT + node.steps[-1].text
        if len(node.numbers) > 1:
            self._write(text + LEFT + _joined(node.numbers))
        else:
            self._write(text)
            if self._best is None or self._distance(node) < self._distance(self._best):
                self._best = node
        return node.numbers == (self._target,) or self._length > self._longest

    def _distance(self, node: Node) -> int:
        return abs(node.numbers[0] - self._target)

    def _children(self, node: Node) -> Sequence[Node]:
        """Return the nodes after `node` in the order in which they are tried."""
        steps = possible_steps(node.numbers)
        if len(node.numbers) > 2:
            order = self._rng.permutation(len(steps)).tolist()
            if self._heuristic is not None:
                # Sorting keeps the random order of steps that are equally near.
                distances = [self._heuristic(left, self._target) for _, left in steps]
                order.sort(key=distances.__getitem__)
            steps = [steps[place] for place in order[: self._width]]
        return [Node(left, (*node.steps, step)) for step, left in steps]

    def _write(self, text: str) -> None:
        self._parts.append(text)
        self._length += len(text)


@lru_cache(maxsize=65_536)
def possible_steps(numbers: Numbers) -> list[tuple[Step, Numbers]]:
    """Return every step from sorted numbers with the sorted numbers that it leaves.

    Of steps that leave the same numbers only the first is kept.
    """
    found: dict[Numbers, Step] = {}
    for first, second in combinations(range(len(numbers)), 2):
        others = numbers[:first] + numbers[first + 1 : second] + numbers[second + 1 :]
        for step in steps_between(numbers[second], numbers[first]):
            found.setdefault(tuple(sorted((*others, step.result))), step)
    return [(step, left) for left, step in found.items()]


@lru_cache(maxsize=1024)
def _factors(target: int) -> tuple[int, ...]:
    return tuple(factor for factor in range(2, target + 1) if target % factor == 0) or (target,)


def _joined(numbers: Numbers) -> str:
    return ",".join(map(str, numbers))
