"""The largest return that a budget allows if the length of each answer can be chosen freely.

This is a knapsack problem with an order. Questions are answered in sequence, hard mode ends the
episode once fewer than `min_tokens` remain, and the bonus depends on all tokens spent. It is solved
by dynamic programming over the questions and the tokens spent so far.

The bonus is (right answers) x g(tokens spent at the end), so the value of a right answer depends
on an end that is not known yet. But for a fixed end, g is a fixed amount m per right answer. The
tables therefore have one row per distinct m. Row m holds the best returns if each right answer also
earns m, and it is read only at the ends whose bonus per right answer is m.
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
"""Most distinct amounts of spent tokens. A larger budget is counted in units of several tokens."""
POINTS: Final = 16
"""Most lengths of an estimated curve."""

Array = NDArray[np.float64]


class LengthCurve(NamedTuple):
    """K possible lengths of the answer to one question, and the success of each."""

    tokens_K: NDArray[np.int64]
    """Tokens charged. The smallest must not exceed `min_tokens`, so that an answer always fits."""
    success_K: Array
    """Probability that an answer of this length is right."""


def exact_curve(tokens: int, empty: int = 0) -> LengthCurve:
    """Return the curve of a solver that is right with `tokens` tokens and never with fewer.

    `empty` is the price of the empty answer.
    """
    return LengthCurve(np.array([empty, tokens]), np.array([0.0, 1.0]))


def estimated_curve(
    tokens_A: NDArray[np.int64], right_A: NDArray[np.bool_], empty: int
) -> LengthCurve:
    """Return the curve that A answers to questions of one type suggest.

    With a limit of t tokens, the success is the share of all A answers that were right with at
    most t tokens. The price is the mean of min(tokens, t), because a solver stops when it is done.
    Answers that were cut count as wrong at every length, so the curve shows what the solver has
    achieved, not what it could achieve with more tokens.

    Example: of four answers, two are right with 10 and 20 tokens, and two wrong with 15 and 30. A
    limit of 10 costs 10 and succeeds with 0.25. A limit of 20 costs (10 + 20 + 15 + 20) / 4,
    rounded, and succeeds with 0.5.
    """
    winning = np.sort(tokens_A[right_A])
    if not len(winning):
        return LengthCurve(np.array([empty]), np.array([0.0]))
    # Only lengths at which some answer became right can raise the success, so quantiles of those
    # lengths represent the curve; the last one, where all of them succeed, is always included.
    shares = np.linspace(0.0, 1.0, min(POINTS, len(winning)))
    lengths_K = np.unique(np.quantile(winning, shares, method="higher"))
    success_K = np.searchsorted(winning, lengths_K, side="right") / len(tokens_A)
    charged_K = np.minimum(tokens_A[:, None], lengths_K).mean(axis=0).round().astype(np.int64)
    return LengthCurve(np.concatenate([[empty], charged_K]), np.concatenate([[0.0], success_K]))


def best_return(curves: Sequence[LengthCurve], budget: int, config: EconomicsConfig) -> float:
    """Return the largest expected return of N = len(curves) questions on `budget` tokens.

    Each question gets one length of its curve, chosen beforehand, and is charged all of it. In
    hard mode the lengths fit into the budget; in soft mode they may exceed it and pay for that.
    The result is exact if at most STATES different amounts can be spent. Beyond that, lengths are
    rounded up to whole units, so the result is at most the true one.
    """
    rules = _RewardTables(config, budget, len(curves))
    # S states: tokens spent so far, in multiples of `unit`. Rounding each length up keeps every
    # plan affordable, so a coarse unit can only make the oracle worse, never too good.
    total = sum(int(curve.tokens_K.max()) for curve in curves)
    unit = max(1, -(-min(total, budget if rules.hard else total) // STATES))
    limit = sum(int(-(-curve.tokens_K.max() // unit)) for curve in curves)
    spent_S = np.arange((min(limit, budget // unit) if rules.hard else limit) + 1) * unit
    # M rows: the distinct bonuses per right answer (see the module's docstring).
    bonus_M, bonus_of_S = np.unique(rules.bonuses(spent_S), return_inverse=True)
    value_MS = np.full((len(bonus_M), len(spent_S)), -np.inf)
    value_MS[:, 0] = 0.0
    best = -np.inf
    for left, curve in zip(range(len(curves) - 1, -1, -1), curves, strict=True):
        value_MS = _answer(value_MS, curve, unit, rules.step_rewards(curve, spent_S), bonus_M)
        # After the last question every state is an end; before it, only a hard stop is one. Each
        # end reads the row that pays its own bonus.
        ended_S = rules.ended(spent_S) if left else np.full(len(spent_S), True)
        final_S = value_MS[bonus_of_S, np.arange(len(spent_S))] + rules.unanswered(left)
        best = max(best, float(final_S[ended_S].max(initial=-np.inf)))
        # An ended episode cannot answer further questions.
        value_MS[:, ended_S] = -np.inf
    return best


def _answer(
    value_MS: Array, curve: LengthCurve, unit: int, reward_KS: Array, bonus_M: Array
) -> Array:
    """Return the best values after one more answer, by the tokens spent then."""
    after_MS = np.full_like(value_MS, -np.inf)
    for tokens, success, reward_S in zip(*curve, reward_KS, strict=True):
        cost, states = -(-int(tokens) // unit), value_MS.shape[1]
        if cost < states:  # a longer answer exceeds the budget from every state
            gain_MS = reward_S[: states - cost] + success * bonus_M[:, None]
            reached_MS = after_MS[:, cost:]
            np.maximum(reached_MS, value_MS[:, : states - cost] + gain_MS, out=reached_MS)
    return after_MS


class _RewardTables(NamedTuple):
    """The reward rules of one episode as arrays over the tokens spent."""

    config: EconomicsConfig
    budget: int
    problems: int

    @property
    def hard(self) -> bool:
        return self.config.mode == "hard"

    def ended(self, spent_S: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return where a hard stop ends the episode before the last question."""
        return self.hard & (self.budget - spent_S < self.config.min_tokens)

    def bonuses(self, spent_S: NDArray[np.int64]) -> Array:
        """Return the bonus per right answer of an episode that ends with `spent_S` tokens spent."""
        rules, coefficients = self.config.rules, coefficient_set(self.config.coefficients)
        return np.array(
            [
                episode_bonus(
                    1, int(s), self.budget, self.problems, rules=rules, coefficients=coefficients
                )
                for s in spent_S
            ]
        )

    def unanswered(self, left: int) -> float:
        """Return the reward of `left` unanswered questions at the end of an episode."""
        coefficients = coefficient_set(self.config.coefficients)
        return unanswered_penalty(left, rules=self.config.rules, coefficients=coefficients)

    def step_rewards(self, curve: LengthCurve, spent_S: NDArray[np.int64]) -> Array:
        """Return [K, S]: the expected reward of each length after `spent_S` tokens."""
        # Earlier spending changes a reward only through the price of overspend, which hard mode
        # does not have: lengths that exceed the budget are excluded in `_answer`.
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
