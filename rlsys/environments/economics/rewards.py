"""Rewards of answers and episodes: pure functions of verdicts, tokens and the budget.

Notation: N problems share B tokens, f = B/N is the fair share, an answer of t tokens has the
relative length s = t/f, and an episode that spent S tokens has the utilisation u = S/B.

    answer    right 1.0 or wrong -0.1
              - cost * max(0, s - 1)
              + efficiency * (1 - s)                       right answers only
              - overspend * (tokens beyond B) / f          soft mode only
    episode   + bonus * (right answers / N) * g(u)

The rules `compat` (as published) and `default` differ in four terms:

| term | compat | default |
| --- | --- | --- |
| tokens beyond B | all so far, max(0, S_before + t - B), again at every step | this answer's own |
| efficiency | no minimum: a long right answer may earn less than a wrong one | at least -0.5 |
| g(u) | 1 - abs(u - target): spending unused tokens raises the reward | 1 - max(0, u - target) |
| unanswered questions | 0 | -0.1 each, as much as the shortest wrong answer |

The default rules also limit cost + overspend of one answer to 10, which gives rewards a finite
range in soft mode. Neither limit changes the order: at equal length a right answer earns at least
0.6 more than a wrong one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, NamedTuple, get_args

from rlsys.config.economics import (
    DEFAULT_COEFFICIENTS,
    DEFAULT_MODE,
    DEFAULT_RULES,
    CoefficientSet,
    Mode,
    Rules,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Coefficients:
    """The coefficients of the reward; `D` and `D2` are the two published sets."""

    cost: float
    """Price per fair share that an answer uses beyond its own one (beta)."""
    efficiency: float
    """Reward of a right answer per unused fair share (gamma)."""
    bonus: float
    """Episode bonus if all answers are right (lambda)."""
    target: float
    """Utilisation above which the bonus shrinks (u*)."""
    overspend: float
    """Price per fair share beyond the budget, soft mode (rho)."""
    right: float = 1.0
    wrong: float = -0.1
    unanswered: float = -0.1
    """Default rules: reward of a question that was never asked."""
    efficiency_floor: float = -0.5
    """Default rules: minimum of the efficiency term of a right answer."""
    penalty_cap: float = 10.0
    """Default rules: maximum of cost + overspend of one answer."""


D: Final = Coefficients(cost=0.05, efficiency=0.10, bonus=0.50, target=0.90, overspend=0.25)
D2: Final = Coefficients(cost=0.05, efficiency=0.15, bonus=0.40, target=0.85, overspend=0.30)

_SETS: Final[dict[CoefficientSet, Coefficients]] = {"D": D, "D2": D2}
_DEFAULT_SET: Final = _SETS[DEFAULT_COEFFICIENTS]
_DIGITS: Final = 12
"""Decimals of a reward: far finer than any real difference, coarse enough to hide float error."""


def coefficient_set(name: CoefficientSet) -> Coefficients:
    """Return the published set called `name`. Raises ValueError for another name."""
    _check_choice("coefficients", name, CoefficientSet)
    return _SETS[name]


class RewardParts(NamedTuple):
    """The signed terms of one step's reward; the reward is their sum."""

    correctness: float = 0.0
    cost: float = 0.0
    efficiency: float = 0.0
    overspend: float = 0.0
    bonus: float = 0.0
    """Episode bonus; zero before the last step."""
    unanswered: float = 0.0
    """Reward of the questions that were never asked; zero before the last step."""

    @property
    def total(self) -> float:
        """The reward, rounded to 12 decimals so that float error cannot leave `reward_range`."""
        return round(sum(self), _DIGITS)

    @property
    def end_reward(self) -> float:
        """The part of the reward that belongs to the whole episode: bonus + unanswered."""
        return self.bonus + self.unanswered


def step_reward(
    correct: bool,
    tokens: int,
    budget: int,
    problems: int,
    *,
    spent_before: int = 0,
    mode: Mode = DEFAULT_MODE,
    rules: Rules = DEFAULT_RULES,
    coefficients: Coefficients = _DEFAULT_SET,
) -> float:
    """Return the reward of one answer, without the two terms of the whole episode.

    `tokens` is the length of the answer and `spent_before` what earlier answers spent. In hard
    mode at most the remaining `budget - spent_before` is charged. With a budget or a number of
    problems below 1 there is no fair share, and only correctness counts.

    Raises ValueError for an unknown mode or unknown rules, and for negative numbers of tokens.

    Example: step_reward(True, 100, 2000, 10) is 1 + 0.1 * (1 - 100/200) = 1.05
    """
    return step_parts(
        correct,
        tokens,
        budget,
        problems,
        spent_before=spent_before,
        mode=mode,
        rules=rules,
        coefficients=coefficients,
    ).total


def step_parts(
    correct: bool,
    tokens: int,
    budget: int,
    problems: int,
    *,
    spent_before: int = 0,
    mode: Mode = DEFAULT_MODE,
    rules: Rules = DEFAULT_RULES,
    coefficients: Coefficients = _DEFAULT_SET,
) -> RewardParts:
    """Return the signed terms of `step_reward`. Raises the same errors."""
    _check_choice("mode", mode, Mode)
    _check_choice("rules", rules, Rules)
    _check_least(0, tokens=tokens, spent_before=spent_before)
    k = coefficients
    correctness = k.right if correct else k.wrong
    if budget <= 0 or problems <= 0:
        return RewardParts(correctness)
    fair_share = budget / problems
    if mode == "hard":
        tokens = min(tokens, max(0, budget - spent_before))
    length = tokens / fair_share
    cost = k.cost * max(0.0, length - 1)
    efficiency = k.efficiency * (1 - length) if correct else 0.0
    # As published, `beyond` is everything overspent so far, so compat charges the same tokens again
    # at every later step. Subtracting the earlier overspend leaves this answer's own tokens.
    beyond = max(0, spent_before + tokens - budget)
    if rules == "default":
        beyond -= max(0, spent_before - budget)
        # Without the floor, a right answer of more than 12 fair shares would earn less than a
        # wrong one. The floor is not 0: a right answer of 5 shares should still earn 0.4.
        efficiency = max(efficiency, k.efficiency_floor) if correct else 0.0
    overspend = k.overspend * beyond / fair_share if mode == "soft" else 0.0
    if rules == "default" and cost + overspend > k.penalty_cap:
        # Both terms shrink by the same factor, so the reported terms keep their proportion.
        shrink = k.penalty_cap / (cost + overspend)
        cost, overspend = cost * shrink, overspend * shrink
    return RewardParts(
        correctness, 0.0 - cost, efficiency, 0.0 - overspend
    )  # 0.0 - x is never -0.0


def episode_bonus(
    correct: int,
    spent: int,
    budget: int,
    problems: int,
    *,
    rules: Rules = DEFAULT_RULES,
    coefficients: Coefficients = _DEFAULT_SET,
) -> float:
    """Return the bonus of a finished episode with `correct` right answers and `spent` tokens.

    The default bonus never grows with `spent`: it is full up to the target utilisation and smaller
    above it. The compat bonus is largest exactly at the target, so wasting tokens can raise it.
    Both are proportional to correct / problems, where problems includes unanswered ones. The bonus
    is 0 if budget or problems are below 1.

    Raises ValueError for unknown rules, and for negative `correct` or `spent`.

    Example: episode_bonus(10, 200, 2000, 10) is 0.5 with the default and 0.1 with the compat rules
    """
    _check_choice("rules", rules, Rules)
    _check_least(0, correct=correct, spent=spent)
    if budget <= 0 or problems <= 0:
        return 0.0
    excess = spent / budget - coefficients.target
    distance = max(0.0, excess) if rules == "default" else abs(excess)
    return coefficients.bonus * (correct / problems) * max(0.0, 1.0 - distance)


def unanswered_penalty(
    unanswered: int, *, rules: Rules = DEFAULT_RULES, coefficients: Coefficients = _DEFAULT_SET
) -> float:
    """Return the reward of the questions that a hard stop left unanswered; 0 in compat.

    Without this penalty, spending the budget early would be cheaper than answering wrong.

    Raises ValueError for unknown rules and for a negative `unanswered`.
    """
    _check_choice("rules", rules, Rules)
    _check_least(0, unanswered=unanswered)
    return coefficients.unanswered * unanswered if rules == "default" and unanswered else 0.0


def reward_range(
    problems: int,
    *,
    mode: Mode = DEFAULT_MODE,
    rules: Rules = DEFAULT_RULES,
    coefficients: Coefficients = _DEFAULT_SET,
) -> tuple[float, float]:
    """Return the lowest and highest possible reward of a step.

    The lowest is -inf in soft mode with compat rules, where the price of overspend is unlimited.

    Raises ValueError for an unknown mode or unknown rules, and for less than one problem.
    """
    _check_choice("mode", mode, Mode)
    _check_choice("rules", rules, Rules)
    _check_least(1, problems=problems)
    k = coefficients
    high = round(k.right + k.efficiency + k.bonus, _DIGITS)
    if mode == "soft":
        low = k.wrong - k.penalty_cap if rules == "default" else -math.inf
        return round(low, _DIGITS), high
    # The worst answer spends the whole budget: N fair shares, so N - 1 beyond its own. It also
    # ends the episode and leaves N - 1 questions unanswered.
    longest = problems - 1
    cost = k.cost * longest
    if rules == "default":
        cost = min(cost, k.penalty_cap)
    wrong = k.wrong - cost + unanswered_penalty(longest, rules=rules, coefficients=k)
    right = k.right - cost - k.efficiency * longest
    # Without the efficiency floor, the lowest compat reward may belong to a long right answer.
    return round(wrong if rules == "default" else min(wrong, right), _DIGITS), high


def _check_choice(name: str, value: str, choices: object) -> None:
    """Raise ValueError unless `value` is one of the values of the Literal `choices`."""
    known = get_args(choices)
    if value not in known:
        raise ValueError(f"{name} is {value!r} but should be {' or '.join(map(repr, known))}")


def _check_least(least: int, **numbers: int) -> None:
    """Raise ValueError for the first of `numbers` below `least`."""
    for name, number in numbers.items():
        if number < least:
            raise ValueError(f"{name} is {number} but should be {least} or more")
