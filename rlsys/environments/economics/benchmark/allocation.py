"""The best return that a budget can buy, by someone who knows how long each answer must be.

A knapsack with an order: questions are answered one after the other, an episode in hard mode ends
where less than `min_tokens` is left, and the bonus depends on everything spent. Dynamic programming
over questions and tokens spent. The bonus is right answers x g(spent): for a given end it pays a
fixed amount m = g(spent) per right answer, so values are kept for each of the few different m, and
read at the ends that pay it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlsys.config.economics import EconomicsConfig
from rlsys.environments.economics.rewards import (
    coefficient_set,
    episode_bonus,
    step_reward,
    unanswered_penalty,
)

STATES: Final = 1024
"""Most different amounts spent; a larger budget is counted in units of several tokens."""
POINTS: Final = 16
"""Most lengths of an estimated curve."""

Array = NDArray[np.float64]


class Curve(NamedTuple):
    """K lengths that the answer to one question may have, and what each achieves."""

    tokens_K: NDArray[np.int64]
    """Tokens charged. The smallest must not exceed `min_tokens`: an answer is always possible."""
    success_K: Array
    """Probability that an answer of this length is right."""


def exact_curve(tokens: int, empty: int = 0) -> Curve:
    """The curve of a solver that is right with `tokens` and never with less.

    `empty` is the price of the empty answer.
    """
    return Curve(np.array([empty, tokens]), np.array([0.0, 1.0]))


def estimated_curve(tokens_A: NDArray[np.int64], right_A: NDArray[np.bool_], empty: int) -> Curve:
    """The curve that A answers to questions of one kind suggest.

    Under a limit of t tokens the share of all answers that were right and no longer than t is
    right, and an answer is charged min(its tokens, t) on average: who is done stops. Answers that
    were cut count as wrong at every length, so this is what the solver has shown, not what it could
    do.

    Example: of four answers, right with 10 and 20 tokens, wrong with 15 and 30, a limit of 10 costs
    10 and succeeds with 0.25, one of 20 costs (10 + 20 + 15 + 20) / 4, rounded, and succeeds with
    0.5.
    """
    winning = np.sort(tokens_A[right_A])
    if not len(winning):
        return Curve(np.array([empty]), np.array([0.0]))
    shares = np.linspace(0.0, 1.0, min(POINTS, len(winning)))
    lengths_K = np.unique(np.quantile(winning, shares, method="higher"))
    success_K = np.searchsorted(winning, lengths_K, side="right") / len(tokens_A)
    charged_K = np.minimum(tokens_A[:, None], lengths_K).mean(axis=0).round().astype(np.int64)
    return Curve(np.concatenate([[empty], charged_K]), np.concatenate([[0.0], success_K]))


def best_return(curves: Sequence[Curve], budget: int, config: EconomicsConfig) -> float:
    """Return the largest expected return of N = len(curves) questions on `budget` tokens.

    Each question gets one of its curve's lengths, chosen beforehand, and is charged all of it. In
    hard mode the lengths fit into the budget; in soft mode they may exceed it, at its price. Exact
    while no more than STATES tokens can be spent; beyond, lengths are rounded up to a unit, and the
    result is at most the true one.
    """
    rules = _Rules(config, budget, len(curves))
    total = sum(int(curve.tokens_K.max()) for curve in curves)
    unit = max(1, -(-min(total, budget if rules.hard else total) // STATES))
    limit = sum(int(-(-curve.tokens_K.max() // unit)) for curve in curves)
    spent_S = np.arange((min(limit, budget // unit) if rules.hard else limit) + 1) * unit
    bonus_M, bonus_of_S = np.unique(rules.bonuses(spent_S), return_inverse=True)
    value_MS = np.full((len(bonus_M), len(spent_S)), -np.inf)
    value_MS[:, 0] = 0.0
    best = -np.inf
    for left, curve in zip(range(len(curves) - 1, -1, -1), curves, strict=True):
        value_MS = _answer(value_MS, curve, unit, rules.step_rewards(curve, spent_S), bonus_M)
        ended_S = rules.ended(spent_S) if left else np.full(len(spent_S), True)
        final_S = value_MS[bonus_of_S, np.arange(len(spent_S))] + rules.never_reached(left)
        best = max(best, float(final_S[ended_S].max(initial=-np.inf)))
        value_MS[:, ended_S] = -np.inf
    return best


def _answer(value_MS: Array, curve: Curve, unit: int, reward_KS: Array, bonus_M: Array) -> Array:
    """Best values after one more answer, by tokens then spent."""
    after_MS = np.full_like(value_MS, -np.inf)
    for tokens, success, reward_S in zip(*curve, reward_KS, strict=True):
        cost, states = -(-int(tokens) // unit), value_MS.shape[1]
        if cost < states:
            gain_MS = reward_S[: states - cost] + success * bonus_M[:, None]
            reached_MS = after_MS[:, cost:]
            np.maximum(reached_MS, value_MS[:, : states - cost] + gain_MS, out=reached_MS)
    return after_MS


class _Rules(NamedTuple):
    """The reward as arrays over tokens spent."""

    config: EconomicsConfig
    budget: int
    problems: int

    @property
    def hard(self) -> bool:
        return self.config.mode == "hard"

    def ended(self, spent_S: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Where an episode ends though questions are left."""
        return self.hard & (self.budget - spent_S < self.config.min_tokens)

    def bonuses(self, spent_S: NDArray[np.int64]) -> Array:
        """Bonus per right answer of an episode that ends with so much spent."""
        rules, coefficients = self.config.rules, coefficient_set(self.config.coefficients)
        return np.array(
            [
                episode_bonus(
                    1, int(s), self.budget, self.problems, rules=rules, coefficients=coefficients
                )
                for s in spent_S
            ]
        )

    def never_reached(self, left: int) -> float:
        """What the questions left earn where an episode ends."""
        coefficients = coefficient_set(self.config.coefficients)
        return unanswered_penalty(left, rules=self.config.rules, coefficients=coefficients)

    def step_rewards(self, curve: Curve, spent_S: NDArray[np.int64]) -> Array:
        """[K, S] expected reward of each length after so much was spent."""
        # Only the price of overspending depends on what was spent before.
        spents = [0] if self.hard else [int(s) for s in spent_S]
        reward_KX = np.array(
            [
                [p * self._step(True, t, s) + (1 - p) * self._step(False, t, s) for s in spents]
                for t, p in zip(curve.tokens_K.tolist(), curve.success_K.tolist(), strict=True)
            ]
        )
        return np.broadcast_to(reward_KX, (len(reward_KX), len(spent_S)))

    def _step(self, correct: bool, tokens: int, spent: int) -> float:
        return step_reward(
            correct,
            tokens,
            self.budget,
            self.problems,
            spent_before=spent,
            mode=self.config.mode,
            rules=self.config.rules,
            coefficients=coefficient_set(self.config.coefficients),
        )
