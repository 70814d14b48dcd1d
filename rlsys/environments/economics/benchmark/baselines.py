"""Agents to compare a trained policy with: a rule for how many tokens, and something that answers.

An allocator sees the observation and names a number of tokens for the current question. A solver
writes an answer of at most that length. The four allocators are those of the original, except that
greedy-max has a rule of its own and the bandit learns from the observation it acted on.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from rlsys.data.arithmetic import signed_terms
from rlsys.environments.economics.benchmark.sessions import Answer
from rlsys.environments.economics.config import METAMATH_TYPES, NUMINA_TYPE
from rlsys.environments.economics.counting import TokenCounter
from rlsys.environments.economics.models import EconomicsObservation


class Allocator(Protocol):
    """Decides how many tokens the current question may cost."""

    def allocate(self, observation: EconomicsObservation) -> int:
        """Return a number of tokens."""
        ...

    def learn(self, observation: EconomicsObservation, tokens: int, reward: float) -> None:
        """Take note of the reward for allocating `tokens` when `observation` was seen."""
        ...


class Solver(Protocol):
    """Answers a question."""

    def __call__(self, question: str, tokens: int) -> str:
        """Return an answer that costs at most `tokens`."""
        ...


class Bounds:
    """The range of allocations, and no learning."""

    def __init__(self, min_tokens: int = 10, max_tokens: int = 800) -> None:
        """Allocate no less than `min_tokens` and no more than `max_tokens`."""
        self.min_tokens = min_tokens
        self.max_tokens = max_tokens

    def clamp(self, tokens: float) -> int:
        """Return `tokens` within the bounds, as a whole number."""
        return int(min(max(tokens, self.min_tokens), self.max_tokens))

    def learn(self, observation: EconomicsObservation, tokens: int, reward: float) -> None:
        """Nothing: the rule is fixed."""


class Uniform(Bounds):
    """What remains, shared evenly among the questions left."""

    def allocate(self, observation: EconomicsObservation) -> int:
        """Return remaining budget / questions left."""
        return self.clamp(observation.budget_per_remaining)


class GreedyMax(Bounds):
    """As much as one answer may have, for as long as the budget lasts."""

    def allocate(self, observation: EconomicsObservation) -> int:
        """Return everything that remains, up to the largest allocation."""
        return self.clamp(observation.remaining_budget)


ORACLE_TOKENS = dict(
    zip((*METAMATH_TYPES, NUMINA_TYPE), (400, 380, 350, 500, 120, 120, 100, 140, 700), strict=True)
)
"""Tokens that the original's difficulty oracle gives to each type."""
UNKNOWN_TYPE_TOKENS = 300
TOKENS_PER_TERM = 8
"""Of generated arithmetic: one step of a sum written out, in the tiny model's tokens."""


class DifficultyOracle(Bounds):
    """A fixed number of tokens by type; needs an environment that reveals the types."""

    def allocate(self, observation: EconomicsObservation) -> int:
        """Return the type's number."""
        kind = observation.problem_type or ""
        if match := re.fullmatch(r"arithmetic_(\d+)", kind):
            return self.clamp(TOKENS_PER_TERM * int(match[1]))
        return self.clamp(ORACLE_TOKENS.get(kind, UNKNOWN_TYPE_TOKENS))


class LinUCB(Bounds):
    """A contextual bandit over evenly spaced allocations (Li et al. 2010, Algorithm 1, disjoint).

    Per arm a: A_a = I + sum x x', b_a = sum r x; it plays the arm with the largest
    theta_a' x + alpha * sqrt(x' A_a^-1 x) with theta_a = A_a^-1 b_a.
    """

    def __init__(
        self,
        min_tokens: int = 10,
        max_tokens: int = 800,
        *,
        arms: int = 16,
        alpha: float = 1.0,
    ) -> None:
        """Explore with weight `alpha` among `arms` allocations."""
        super().__init__(min_tokens, max_tokens)
        self.arms_A = np.linspace(min_tokens, max_tokens, arms)
        self.alpha = alpha
        features = len(self.features(_BLANK))
        self._inverse_AFF = np.tile(np.eye(features), (arms, 1, 1))
        self._rewards_AF = np.zeros((arms, features))

    @staticmethod
    def features(observation: EconomicsObservation) -> NDArray[np.float64]:
        """[5] a constant, the budget left, questions left, tokens per question, question length.

        Scaled to about 0..1 as the original does; its text embedding is replaced by the length,
        for an allocator should not need a second model.
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
        """Return the arm with the largest upper confidence bound, the smallest of equal ones."""
        x_F = self.features(observation)
        spread_AF = self._inverse_AFF @ x_F
        mean_A = np.einsum("af,af->a", spread_AF, self._rewards_AF)
        bound_A = mean_A + self.alpha * np.sqrt(spread_AF @ x_F)
        return int(self.arms_A[int(np.argmax(bound_A))])

    def learn(self, observation: EconomicsObservation, tokens: int, reward: float) -> None:
        """Credit the arm nearest to `tokens` with `reward` under what was then seen."""
        arm = int(np.argmin(np.abs(self.arms_A - tokens)))
        x_F = self.features(observation)
        spread_F = self._inverse_AFF[arm] @ x_F
        # Sherman and Morrison: the inverse of A + x x' from that of A.
        self._inverse_AFF[arm] -= np.outer(spread_F, spread_F) / (1 + x_F @ spread_F)
        self._rewards_AF[arm] += reward * x_F


_BLANK = EconomicsObservation.model_construct(
    question="", remaining_budget=0.0, questions_remaining=0, budget_per_remaining=0.0
)


class Filler:
    """Never knows the answer: filler words up to the allocation, and a boxed 0."""

    def __init__(self, counter: TokenCounter) -> None:
        """Measure length with `counter`."""
        self._counter = counter

    def __call__(self, question: str, tokens: int) -> str:
        """Return the longest text of whole words that costs at most `tokens`."""
        box = "\\boxed{0}"
        filler = self._counter.prefix("step " * tokens, tokens - self._counter.count(box))
        text = filler + box
        return text if self._counter.count(text) <= tokens else box


class ColumnAdder:
    """Works sums of generated arithmetic out step by step, and is cut off where tokens end.

    A stand-in for a model in tests and worked examples: harder questions need more tokens.
    """

    def __init__(self, counter: TokenCounter) -> None:
        """Measure length with `counter`."""
        self._counter = counter

    def __call__(self, question: str, tokens: int) -> str:
        """Return `3 +8 = 11 -2 = 9 \\boxed{9}`, cut after `tokens`."""
        return self._counter.prefix(self._worked(question), tokens)

    def needed(self, question: str) -> int:
        """Return the fewest tokens that end in the answer."""
        return self._counter.count(self._worked(question))

    @staticmethod
    def _worked(question: str) -> str:
        first, *rest = signed_terms(question)
        steps, total = [str(first)], first
        for term in rest:
            total += term
            steps.append(f"{term:+d} = {total}")
        return f"{' '.join(steps)} \\boxed{{{total}}}"


class Baseline(NamedTuple):
    """An agent: the allocator decides how long, the solver answers."""

    allocator: Allocator
    solver: Solver

    @property
    def concurrency(self) -> int:
        """LinUCB learns from one episode to the next, and the others are too quick to need more."""
        return 1

    async def answer(self, seen: EconomicsObservation) -> Answer:
        """Answer within the allocation."""
        allocated = self.allocator.allocate(seen)
        return Answer(self.solver(seen.question, allocated), allocated=allocated)

    def learn(self, seen: EconomicsObservation, answer: Answer, reward: float) -> None:
        """Tell the allocator."""
        assert answer.allocated is not None
        self.allocator.learn(seen, answer.allocated, reward)
