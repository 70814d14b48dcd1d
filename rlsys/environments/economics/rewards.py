"""What an answer and an episode earn: pure functions of verdicts, tokens and the budget.

Notation: N problems share B tokens, f = B/N is the fair share, an answer of t tokens has the
relative length s = t/f, and an episode that spent S tokens has the utilisation u = S/B.

    answer    right 1.0 or wrong -0.1
              - cost * max(0, s - 1)
              + efficiency * (1 - s)                       right answers only
              - overspend * (tokens beyond B) / f          soft mode only
    episode   + bonus * (right answers / N) * g(u)

The two rules differ in four terms, the rest is the same:

| term | compat: as published | default |
| --- | --- | --- |
| tokens beyond B | all so far, max(0, S_before + t - B), billed anew each step | the own ones |
| efficiency | without a floor: a long right answer may earn less than a wrong one | >= -0.5 |
| g(u) | 1 - abs(u - target): idle tokens are worth burning | 1 - max(0, u - target) |
| never reached | free | -0.1 each, the least a wrong answer costs (`unanswered_penalty`) |

The default also bounds cost and overspend of one answer together by 10, so that rewards have a
declared range in soft mode too. No bound touches the order: at equal length a right answer earns
at least 0.6 more than a wrong one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, get_args

from rlsys.config.economics import CoefficientSet, Mode, Rules


@dataclass(frozen=True, slots=True, kw_only=True)
class Coefficients:
    """The numbers of the reward; `D` and `D2` are the two published sets."""

    cost: float
    """Price of one fair share beyond the own one (beta)."""
    efficiency: float
    """Gain of a right answer per unused fair share (gamma)."""
    bonus: float
    """Episode bonus when everything is right (lambda)."""
    target: float
    """Utilisation from which on the bonus shrinks (u*)."""
    overspend: float
    """Price of one fair share beyond the budget, soft mode (rho)."""
    right: float = 1.0
    wrong: float = -0.1
    unanswered: float = -0.1
    """Default rules: what a problem earns that was never reached."""
    efficiency_floor: float = -0.5
    """Default rules: the efficiency term of a right answer is never lower."""
    penalty_cap: float = 10.0
    """Default rules: cost and overspend of one answer together are never higher."""


D: Final = Coefficients(cost=0.05, efficiency=0.10, bonus=0.50, target=0.90, overspend=0.25)
D2: Final = Coefficients(cost=0.05, efficiency=0.15, bonus=0.40, target=0.85, overspend=0.30)


_DIGITS: Final = 12
_SETS: Final[dict[CoefficientSet, Coefficients]] = {"D": D, "D2": D2}


def coefficient_set(name: CoefficientSet) -> Coefficients:
    """Return the published set of that name; ValueError if there is none."""
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
    """What the problems never reached earn; zero before the last step."""

    @property
    def total(self) -> float:
        """The reward, rounded far below any difference so that it keeps to `reward_range`."""
        return round(sum(self), _DIGITS)


def step_reward(
    correct: bool,
    tokens: int,
    budget: int,
    problems: int,
    *,
    spent_before: int = 0,
    mode: Mode = "hard",
    rules: Rules = "default",
    coefficients: Coefficients = D,
) -> float:
    """Return the reward of one answer, without the terms of the episode's end.

    `tokens` is the length of the answer. In hard mode no more than what `spent_before` leaves of
    the budget is charged.

    A budget or a number of problems below 1 has no fair share, and only correctness counts.

    Raises ValueError for an unknown mode or unknown rules, and negative numbers of tokens.

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
    mode: Mode = "hard",
    rules: Rules = "default",
    coefficients: Coefficients = D,
) -> RewardParts:
    """Return the terms of `step_reward`, each with its sign; raises what it raises."""
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
    beyond = max(0, spent_before + tokens - budget)
    if rules == "default":
        efficiency = max(efficiency, k.efficiency_floor) if correct else 0.0
        beyond -= max(0, spent_before - budget)
    overspend = k.overspend * beyond / fair_share if mode == "soft" else 0.0
    if rules == "default" and cost + overspend > k.penalty_cap:
        shrink = k.penalty_cap / (cost + overspend)
        cost, overspend = cost * shrink, overspend * shrink
    return RewardParts(correctness, 0.0 - cost, efficiency, 0.0 - overspend)  # never -0.0


def episode_bonus(
    correct: int,
    spent: int,
    budget: int,
    problems: int,
    *,
    rules: Rules = "default",
    coefficients: Coefficients = D,
) -> float:
    """Return the bonus of a finished episode with `correct` right answers and `spent` tokens.

    By default it never grows with `spent`: full up to the target utilisation, then less. It is a
    share of all N problems, reached or not, and 0 where budget or problems are below 1.

    Raises ValueError for unknown rules, and negative `correct` or `spent`.

    Example: episode_bonus(10, 200, 2000, 10) is 0.5, and 0.1 under the compat rules
    """
    _check_choice("rules", rules, Rules)
    _check_least(0, correct=correct, spent=spent)
    if budget <= 0 or problems <= 0:
        return 0.0
    excess = spent / budget - coefficients.target
    distance = max(0.0, excess) if rules == "default" else abs(excess)
    return coefficients.bonus * (correct / problems) * max(0.0, 1.0 - distance)


def unanswered_penalty(
    unanswered: int, *, rules: Rules = "default", coefficients: Coefficients = D
) -> float:
    """Return what the problems earn that a hard stop left unreached; a free lunch in compat.

    Raises ValueError for unknown rules and a negative `unanswered`.
    """
    _check_choice("rules", rules, Rules)
    _check_least(0, unanswered=unanswered)
    return coefficients.unanswered * unanswered if rules == "default" and unanswered else 0.0


def reward_range(
    problems: int,
    *,
    mode: Mode = "hard",
    rules: Rules = "default",
    coefficients: Coefficients = D,
) -> tuple[float, float]:
    """Return bounds that hold for every step's reward, whatever is answered.

    The lower one is -inf in soft compat, whose price of overspend has no bound.

    Raises ValueError for an unknown mode or unknown rules, and less than one problem.
    """
    _check_choice("mode", mode, Mode)
    _check_choice("rules", rules, Rules)
    _check_least(1, problems=problems)
    k = coefficients
    high = round(k.right + k.efficiency + k.bonus, _DIGITS)
    if mode == "soft":
        low = k.wrong - k.penalty_cap if rules == "default" else -math.inf
        return round(low, _DIGITS), high
    longest = problems - 1  # a whole budget on one answer, in fair shares beyond its own
    cost = k.cost * longest
    if rules == "default":
        cost = min(cost, k.penalty_cap)
    wrong = k.wrong - cost + unanswered_penalty(longest, rules=rules, coefficients=k)
    right = k.right - cost - k.efficiency * longest
    return round(wrong if rules == "default" else min(wrong, right), _DIGITS), high


def _check_choice(name: str, value: str, choices: Any) -> None:
    """Raise ValueError unless `value` is one of the texts of the Literal `choices`."""
    known = get_args(choices)
    if value not in known:
        raise ValueError(f"{name} is {value!r} but should be {' or '.join(map(repr, known))}")


def _check_least(least: int, **numbers: int) -> None:
    """Raise ValueError for the first of `numbers` below `least`."""
    for name, number in numbers.items():
        if number < least:
            raise ValueError(f"{name} is {number} but should be {least} or more")
