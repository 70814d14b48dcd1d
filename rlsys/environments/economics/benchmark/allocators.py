"""Allocators: rules for how many tokens one answer may have.

The four rules are those of the original benchmark with two changes: greedy-max is a rule of its own
(in the original it equals uniform), and the bandit learns from the observation it acted on.
"""

from __future__ import annotations

import re
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from rlsys.config.economics import METAMATH_TYPES, NUMINA_TYPE
from rlsys.environments.economics.models import EconomicsObservation


class Allocator(Protocol):
    """Decides how many tokens the answer to the current question may have."""

    def allocate(self, observation: EconomicsObservation) -> int:
        """Return a number of tokens."""
        ...

    def learn(self, observation: EconomicsObservation, tokens: int, reward: float) -> None:
        """Use the reward for allocating `tokens` after `observation`."""
        ...


class _FixedRule:
    """An allocator that does not learn and keeps within bounds."""

    def __init__(self, min_tokens: int, max_tokens: int) -> None:
        """Allocate at least `min_tokens` and at most `max_tokens`."""
        self._min_tokens = min_tokens
        self._max_tokens = max_tokens

    def learn(self, observation: EconomicsObservation, tokens: int, reward: float) -> None:
        """Do nothing: the rule is fixed."""

    def _clamp(self, tokens: float) -> int:
        return int(min(max(tokens, self._min_tokens), self._max_tokens))


class Uniform(_FixedRule):
    """Shares the remaining budget evenly among the remaining questions."""

    def allocate(self, observation: EconomicsObservation) -> int:
        """Return remaining budget / remaining questions."""
        return self._clamp(observation.budget_per_remaining)


class GreedyMax(_FixedRule):
    """Allocates the maximum to each question until the budget is spent."""

    def allocate(self, observation: EconomicsObservation) -> int:
        """Return the remaining budget, at most the largest allocation."""
        return self._clamp(observation.remaining_budget)


TOKENS_BY_TYPE: Final = dict(
    zip((*METAMATH_TYPES, NUMINA_TYPE), (400, 380, 350, 500, 120, 120, 100, 140, 700), strict=True)
)
"""Tokens that the original's difficulty oracle allocates to each question type."""
TOKENS_OF_UNKNOWN_TYPE: Final = 300
TOKENS_PER_TERM: Final = 8
"""Generated arithmetic: one written-out step of a sum, in tokens of the tiny model."""


class DifficultyOracle(_FixedRule):
    """Allocates a fixed number of tokens per question type, which the environment must reveal."""

    def allocate(self, observation: EconomicsObservation) -> int:
        """Return the number for the type of the question."""
        kind = observation.problem_type or ""
        if match := re.fullmatch(r"arithmetic_(\d+)", kind):
            return self._clamp(TOKENS_PER_TERM * int(match[1]))
        return self._clamp(TOKENS_BY_TYPE.get(kind, TOKENS_OF_UNKNOWN_TYPE))


_FEATURES: Final = 5


class LinUCB:
    """A contextual bandit over evenly spaced allocations (Li et al. 2010, Algorithm 1, disjoint).

    Each arm a keeps A_a = I + sum x x' and b_a = sum r x over the features x and rewards r of its
    plays. The arm with the largest theta_a' x + alpha * sqrt(x' A_a^-1 x) is played, where
    theta_a = A_a^-1 b_a.
    """

    def __init__(
        self, min_tokens: int, max_tokens: int, *, arms: int = 16, alpha: float = 1.0
    ) -> None:
        """Choose among `arms` allocations from `min_tokens` to `max_tokens`.

        A larger `alpha` explores more.
        """
        self.arms_A = np.linspace(min_tokens, max_tokens, arms)
        self.alpha = alpha
        self._inverse_AFF = np.tile(np.eye(_FEATURES), (arms, 1, 1))
        self._rewards_AF = np.zeros((arms, _FEATURES))

    @staticmethod
    def features(observation: EconomicsObservation) -> NDArray[np.float64]:
        """Return [5]: 1, remaining budget, remaining questions, their ratio, question length.

        The scale, about 0 to 1, is the original's. The original also embeds the text of the
        question; the length replaces that, so the allocator needs no second model.
        """
        values = (
            1.0,
            observation.remaining_budget / 5000,
            observation.questions_remaining / 20,
            observation.budget_per_remaining / 1000,
            len(observation.question) / 100,
        )
        return np.clip(np.array(values), -1.0, 1.0)

    def allocate(self, observation: EconomicsObservation) -> int:
        """Return the arm with the largest upper confidence bound; of equal ones the smallest."""
        x_F = self.features(observation)
        spread_AF = self._inverse_AFF @ x_F
        mean_A = np.einsum("af,af->a", spread_AF, self._rewards_AF)
        bound_A = mean_A + self.alpha * np.sqrt(spread_AF @ x_F)
        return int(self.arms_A[int(np.argmax(bound_A))])

    def learn(self, observation: EconomicsObservation, tokens: int, reward: float) -> None:
        """Update the arm nearest to `tokens` with `reward`."""
        arm = int(np.argmin(np.abs(self.arms_A - tokens)))
        x_F = self.features(observation)
        spread_F = self._inverse_AFF[arm] @ x_F
        # Sherman-Morrison: the inverse of A + x x' from the inverse of A, without solving anew.
        self._inverse_AFF[arm] -= np.outer(spread_F, spread_F) / (1 + x_F @ spread_F)
        self._rewards_AF[arm] += reward * x_F
