"""Problems from a seed: reach a target from given numbers, such as `19,35,44->98`.

A problem is drawn from its solution: two of the numbers are combined with one of `+ - * /`, at
random, until one number is left, which is the target. So every problem can be solved. Every result
of a step is a whole number from 1 to 999. The verifier (rlsys.grading.countdown) also accepts
fractions and negative numbers on the way.

The space of problems is split once and for all: a hash of the sorted numbers decides whether a
problem is held out. The target is not part of the hash, so a held-out problem has numbers that
training never saw with any target, in any order. Within one stream problems may repeat.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import islice
from typing import Final, NamedTuple

import numpy as np

from rlsys.config import CountdownData, CountdownShape
from rlsys.config.data import MOST_NUMBERS, MOST_VALUE
from rlsys.errors import DataError
from rlsys.types import Problem

HELD_OUT_ONE_IN: Final = 4
"""One set of numbers in this many belongs to evaluation."""

_BLOCK: Final = 512
"""Candidates drawn at once; part of what a seed means."""
_DRAWS: Final = 1 + MOST_NUMBERS + 3 * (MOST_NUMBERS - 1)
"""Uniform draws of a candidate: count of numbers, numbers, and for every step a pair and a sign."""
_MOST_MISSES: Final = 50_000
"""Candidates in a row that do not fit before a configuration is refused."""


class Step(NamedTuple):
    """One combination of two numbers: `44-19=25` is Step(44, "-", 19, 25)."""

    left: int
    sign: str
    right: int
    result: int

    @property
    def text(self) -> str:
        return f"{self.left}{self.sign}{self.right}={self.result}"

    @property
    def is_right(self) -> bool:
        """Whether the result is what the combination gives."""
        match self.sign:
            case "+":
                return self.left + self.right == self.result
            case "-":
                return self.left - self.right == self.result
            case "*":
                return self.left * self.right == self.result
            case _:
                return self.right != 0 and self.right * self.result == self.left


class Puzzle(NamedTuple):
    """A Countdown problem with the steps of one of its solutions."""

    numbers: tuple[int, ...]
    target: int
    solution: tuple[Step, ...]

    @property
    def text(self) -> str:
        """The problem as prompts and gold answers write it, for instance `19,35,44->98`."""
        return f"{','.join(map(str, self.numbers))}->{self.target}"


def is_held_out(numbers: Sequence[int]) -> bool:
    """Whether problems with these numbers belong to evaluation: the same in every run."""
    text = ",".join(map(str, sorted(numbers)))
    return blake2b(text.encode(), digest_size=1).digest()[0] % HELD_OUT_ONE_IN == 0


def countdown_problems(config: CountdownData) -> list[Problem]:
    """Return `config.size` problems, the same for the same configuration.

    `difficulty` of a problem is how many numbers are given. The gold answer is the text of the
    problem, because the numbers and the target are all that the verifier needs.
    """
    puzzles = draw_puzzles(np.random.default_rng(config.seed), config, config.held_out, config.size)
    return [
        Problem(
            id=f"countdown-{config.seed}-{i}",
            text=puzzle.text,
            answer=puzzle.text,
            difficulty=float(len(puzzle.numbers)),
        )
        for i, puzzle in enumerate(puzzles)
    ]


def draw_puzzles(
    rng: np.random.Generator, shape: CountdownShape, held_out: bool, size: int
) -> list[Puzzle]:
    """Draw `size` puzzles from one side of the split, with replacement.

    A longer stream begins like a shorter one.

    Raises DataError if the settings of `shape` leave no puzzle to be found.
    """
    return list(islice(_stream(rng, shape, held_out), size))


@lru_cache(maxsize=65_536)
def steps_between(larger: int, smaller: int) -> tuple[Step, ...]:
    """Return the allowed steps with two numbers, in the order + - * /; there is at least one.

    A step without effect is left out where another one has the same result: dividing by 1.
    """
    steps = []
    if larger + smaller <= MOST_VALUE:
        steps.append(Step(larger, "+", smaller, larger + smaller))
    if larger > smaller:
        steps.append(Step(larger, "-", smaller, larger - smaller))
    if larger * smaller <= MOST_VALUE:
        steps.append(Step(larger, "*", smaller, larger * smaller))
    if smaller > 1 and larger % smaller == 0:
        steps.append(Step(larger, "/", smaller, larger // smaller))
    return tuple(steps)


def expression(numbers: Sequence[int], steps: Sequence[Step]) -> str:
    """Return the expression that steps make of numbers, every inner operation in parentheses.

    Example: the numbers 19, 35, 44 and the steps 44+35=79, 79+19=98 give `(44+35)+19`.
    """
    pool = [(number, str(number)) for number in numbers]
    for step in steps:
        left = _take(pool, step.left)
        right = _take(pool, step.right)
        pool.append((step.result, f"({left}{step.sign}{right})"))
    (_, text), *_ = reversed(pool)
    return text[1:-1]


def _take(pool: list[tuple[int, str]], value: int) -> str:
    """Remove the newest entry of this value from the pool and return its expression."""
    place = max(i for i, (known, _) in enumerate(pool) if known == value)
    return pool.pop(place)[1]


def _stream(rng: np.random.Generator, shape: CountdownShape, held_out: bool) -> Iterator[Puzzle]:
    low, high = shape.targets
    misses = 0
    while misses < _MOST_MISSES:
        for draws in rng.random((_BLOCK, _DRAWS)).tolist():
            puzzle = _candidate(iter(draws), shape)
            if low <= puzzle.target <= high and is_held_out(puzzle.numbers) == held_out:
                misses = 0
                yield puzzle
            misses += 1
    side = "held-out" if held_out else "training"
    raise DataError(
        f"no {side} Countdown problem was found with difficulty {shape.difficulty}, numbers up to "
        f"{shape.largest} and targets {shape.targets}; widen largest or targets"
    )


def _candidate(draws: Iterator[float], shape: CountdownShape) -> Puzzle:
    """Draw numbers, then random steps until one number is left."""
    fewest, most = shape.difficulty
    count = fewest + int(next(draws) * (most - fewest + 1))
    numbers = tuple(1 + int(next(draws) * shape.largest) for _ in range(count))
    pool, steps = list(numbers), []
    while len(pool) > 1:
        first = pool.pop(int(next(draws) * len(pool)))
        second = pool.pop(int(next(draws) * len(pool)))
        options = steps_between(max(first, second), min(first, second))
        step = options[int(next(draws) * len(options))]
        steps.append(step)
        pool.append(step.result)
    return Puzzle(numbers, pool[0], tuple(steps))
