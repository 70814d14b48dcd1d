"""Written reasoning about arithmetic, with habits that training with budgets should remove.

A terse trace writes running totals (`11;9;16`). It is as often right as a verbose trace and needs a
third of the tokens, which is what budgets can teach.

A verbose trace writes every step in full (`3+8=11;11-2=9`). Then it may write a `?` and the whole
chain again, several times, each with probability `TraceHabits.recheck`. This is overthinking,
because the total is already known. A step of the first chain may be wrong by one (a slip), and a
re-check has no slips. So a re-check sometimes corrects the answer, but rarely enough to pay for its
tokens.

With `TraceHabits.check`, steps of a verbose chain are also repeated at once
(`3+8=12?3+8=11;11-2=9`). This is reflection on the way to the answer; a thought that is cut at its
first answer keeps it. With `TraceHabits.silent`, traces have no thought. A small model then answers
right only for few numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlsys.config import TraceHabits
from rlsys.data.arithmetic import signed_terms
from rlsys.types import Problem

Style = Literal["silent", "terse", "verbose"]
Bools = NDArray[np.bool_]

MOST_RECHECKS: Final = 3
"""Most re-checks of a trace, so that its length is bounded."""
STEP_MARK: Final = ";"
RECHECK_MARK: Final = "?"


class Step(NamedTuple):
    """One step of a chain: its text, with the mark before it, and the total after it.

    Example: Step(text=";11-2=9", total=9, concludes=False)
    """

    text: str
    total: int
    concludes: bool
    """True for the last step of a chain."""


@dataclass(frozen=True, slots=True)
class Trace:
    """A thought about `problem`, as steps. The end-of-thought token is not part of it."""

    problem: Problem
    style: Style
    steps: tuple[Step, ...]

    @property
    def thought(self) -> str:
        """The text of all steps."""
        return "".join(step.text for step in self.steps)

    @property
    def answer(self) -> str:
        """The total of the last chain. It is not the gold answer if a slip was not corrected."""
        return str(self.steps[-1].total)

    def guess_at(self, cut: int) -> str:
        """Return the best guess that is possible from the first `cut` characters of the thought.

        It is the conclusion of the newest finished chain. If no chain is finished, it is the total
        after the newest finished step; if no step is finished, the first number of the problem.
        """
        guess, concluded, end = signed_terms(self.problem.text)[0], False, 0
        for step in self.steps:
            end += len(step.text)
            if end > cut:
                break
            if step.concludes or not concluded:
                guess, concluded = step.total, concluded or step.concludes
        return str(guess)


def draw_trace(problem: Problem, rng: np.random.Generator, habits: TraceHabits) -> Trace:
    """Draw style, slips, checks and re-checks for a problem with two or more numbers."""
    terms = signed_terms(problem.text)
    slips = [_slip(draw, habits.slip) for draw in rng.random(len(terms) - 1)]
    nothing = [0] * len(slips)
    # A habit with probability 0 draws no random number. So a seed gives the same traces as before
    # the habit existed, and the shipped models can be trained again from their configurations.
    if habits.silent and rng.random() < habits.silent:
        return Trace(problem, "silent", (Step("", sum(terms), concludes=True),))
    if rng.random() < habits.terse:
        return Trace(problem, "terse", _chain(terms, slips, nothing, verbose=False))
    checks = rng.random(len(slips)) < habits.check if habits.check else nothing
    first, *rest = _chain(terms, nothing, nothing, verbose=True)
    recheck = (first._replace(text=RECHECK_MARK + first.text), *rest)
    rechecks = 0
    while rechecks < MOST_RECHECKS and rng.random() < habits.recheck:
        rechecks += 1
    steps = _chain(terms, slips, checks, verbose=True) + recheck * rechecks
    return Trace(problem, "verbose", steps)


def _slip(draw: float, probability: float) -> int:
    """Return the error of a step from a uniform draw: +1 and -1 are equally likely."""
    if draw >= probability:
        return 0
    return 1 if draw < probability / 2 else -1


def _chain(
    terms: Sequence[int], slips: Sequence[int], checks: Sequence[int] | Bools, *, verbose: bool
) -> tuple[Step, ...]:
    """Return the steps that add `terms` one by one; step i is wrong by `slips[i]`.

    A checked step is written twice, the second time without its slip. An uncorrected slip changes
    all later totals of the chain.
    """
    steps: list[Step] = []
    total, mark = terms[0], ""
    for number, (term, slip, checked) in enumerate(zip(terms[1:], slips, checks, strict=True), 1):
        attempts = ((mark, slip), (RECHECK_MARK, 0)) if checked else ((mark, slip),)
        for before, error in attempts:
            after = total + term + error
            text = f"{before}{total}{term:+d}={after}" if verbose else f"{before}{after}"
            steps.append(Step(text, after, number == len(slips)))
        total, mark = after, STEP_MARK
    return tuple(steps)
