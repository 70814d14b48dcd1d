"""Written-out reasoning about arithmetic, with the habits a trained reasoner should lose.

A terse trace writes running totals (`11;9;16`), a verbose one every step in full (`3+8=11;11-2=9`)
and then, with probability one half each time, a `?` and the whole chain once more: overthinking,
for the total is already known. Some steps of a first chain slip by one and a re-check never does,
so re-checking is worth something, only rarely what it costs. A terse trace is as good as a verbose
one at a third of the tokens: that is what budgets can teach.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import numpy as np

from rlsys.data.arithmetic import signed_terms
from rlsys.types import Problem

Style = Literal["terse", "verbose"]

TERSE_SHARE: Final = 0.25
"""Traces that write running totals only."""
RECHECK_PROBABILITY: Final = 0.5
"""That a verbose trace goes through the chain once more, asked again after every chain."""
MOST_RECHECKS: Final = 3
"""Where asking again ends, so that a trace has a longest length."""
SLIP_PROBABILITY: Final = 0.01
"""That a step of the first chain is wrong by one."""
STEP_MARK: Final = ";"
RECHECK_MARK: Final = "?"


class Step(NamedTuple):
    """One step of a chain: its text (the mark before it included) and where it leaves the total.

    Example: Step(text=";11-2=9", total=9, concludes=False)
    """

    text: str
    total: int
    concludes: bool
    """True for the last step of a chain."""


@dataclass(frozen=True, slots=True)
class Trace:
    """A thought about `problem`, without its end mark, and what it makes of the problem."""

    problem: Problem
    style: Style
    steps: tuple[Step, ...]

    @property
    def thought(self) -> str:
        """The text of all steps."""
        return "".join(step.text for step in self.steps)

    @property
    def answer(self) -> str:
        """What the last chain concludes; not the gold answer where a slip went unnoticed."""
        return str(self.steps[-1].total)

    @property
    def known_steps(self) -> int | None:
        """How many leading steps it takes to conclude the gold answer; None if none does."""
        gold = int(self.problem.answer)
        for i, step in enumerate(self.steps):
            if step.concludes and step.total == gold:
                return i + 1
        return None

    @property
    def known_characters(self) -> int | None:
        """Length of the shortest prefix of `thought` that concludes the gold answer, or None."""
        steps = self.known_steps
        return None if steps is None else sum(len(step.text) for step in self.steps[:steps])

    def stands_at(self, cut: int) -> str:
        """The best guess that the first `cut` characters of the thought hold.

        It is the conclusion of the newest finished chain, else the running total of the newest
        finished step, else the first number of the problem.
        """
        guess, concluded, end = signed_terms(self.problem.text)[0], False, 0
        for step in self.steps:
            end += len(step.text)
            if end > cut:
                break
            if step.concludes or not concluded:
                guess, concluded = step.total, concluded or step.concludes
        return str(guess)


def draw_trace(problem: Problem, rng: np.random.Generator) -> Trace:
    """Draw style, slips and re-checks for an arithmetic problem of two or more numbers."""
    terms = signed_terms(problem.text)
    slips = [_slip(draw) for draw in rng.random(len(terms) - 1)]
    if rng.random() < TERSE_SHARE:
        return Trace(problem, "terse", _chain(terms, slips, verbose=False))
    first, *rest = _chain(terms, [0] * len(slips), verbose=True)
    recheck = (first._replace(text=RECHECK_MARK + first.text), *rest)
    rechecks = 0
    while rechecks < MOST_RECHECKS and rng.random() < RECHECK_PROBABILITY:
        rechecks += 1
    steps = _chain(terms, slips, verbose=True) + recheck * rechecks
    return Trace(problem, "verbose", steps)


def _slip(draw: float) -> int:
    """Error of a step from a uniform draw: one too few or one too many, equally often."""
    if draw >= SLIP_PROBABILITY:
        return 0
    return 1 if draw < SLIP_PROBABILITY / 2 else -1


def _chain(terms: list[int], slips: list[int], *, verbose: bool) -> tuple[Step, ...]:
    """The steps that add `terms` one by one, step i wrong by `slips[i]`; errors carry over."""
    steps: list[Step] = []
    total, mark = terms[0], ""
    for term, slip in zip(terms[1:], slips, strict=True):
        after = total + term + slip
        text = f"{mark}{total}{term:+d}={after}" if verbose else f"{mark}{after}"
        steps.append(Step(text, after, len(steps) == len(slips) - 1))
        total, mark = after, STEP_MARK
    return tuple(steps)
