"""Written-out reasoning about arithmetic, with the habits a trained reasoner should lose.

A terse trace writes running totals (`11;9;16`), a verbose one every step in full (`3+8=11;11-2=9`)
and then, with probability one half each time, a `?` and the whole chain once more: overthinking,
for the total is already known. Some steps of a first chain slip by one and a re-check never does,
so re-checking is worth something, only rarely what it costs. A terse trace is as good as a verbose
one at a third of the tokens: that is what budgets can teach. With `TraceHabits.check`, steps of a
verbose chain are also done once more right away (`3+8=12?3+8=11;11-2=9`): reflection on the way to
the answer, which a thought that is cut at its first answer keeps. With `TraceHabits.silent`, traces
have no thought: the answer comes at once, which a small model gets right for few numbers only.
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
"""Where asking again ends, so that a trace has a longest length."""
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


def draw_trace(problem: Problem, rng: np.random.Generator, habits: TraceHabits) -> Trace:
    """Draw style, slips, checks and re-checks for an arithmetic problem of two or more numbers."""
    terms = signed_terms(problem.text)
    slips = [_slip(draw, habits.slip) for draw in rng.random(len(terms) - 1)]
    nothing = [0] * len(slips)
    # Without a habit nothing is drawn for it: traces of older seeds stay as they are.
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
    """Error of a step from a uniform draw: one too few or one too many, equally often."""
    if draw >= probability:
        return 0
    return 1 if draw < probability / 2 else -1


def _chain(
    terms: Sequence[int], slips: Sequence[int], checks: Sequence[int] | Bools, *, verbose: bool
) -> tuple[Step, ...]:
    """The steps that add `terms` one by one, step i wrong by `slips[i]` unless it is checked.

    A checked step is written twice, the second time without its slip; other errors carry over.
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
