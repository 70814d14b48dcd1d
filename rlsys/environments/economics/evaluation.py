"""Compare agents on the same episodes: what they earn, get right and spend, with intervals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from rlsys.environments.economics.baselines import Allocator, Solver
from rlsys.environments.economics.client import EconomicsClient
from rlsys.environments.economics.environment import EconomicsEnvironment
from rlsys.environments.economics.models import EconomicsAction, EconomicsObservation

CONFIDENCE = 0.95
RESAMPLES = 2000


class Agent(NamedTuple):
    """Who decides how long, and who answers."""

    allocator: Allocator
    solver: Solver


class Session(Protocol):
    """An environment, here or behind a URL."""

    def reset(self, seed: int) -> EconomicsObservation:
        """Begin an episode."""
        ...

    def answer(self, response: str) -> EconomicsObservation:
        """Answer the current question."""
        ...


class LocalSession:
    """An environment in this process."""

    def __init__(self, environment: EconomicsEnvironment, *, total_budget: int | None = None):
        """Play `environment`, every episode with `total_budget` tokens if given."""
        self._environment = environment
        self._total_budget = total_budget

    def reset(self, seed: int) -> EconomicsObservation:
        """Begin an episode."""
        return self._environment.reset(seed=seed, total_budget=self._total_budget)

    def answer(self, response: str) -> EconomicsObservation:
        """Answer the current question."""
        return self._environment.step(EconomicsAction(response=response))


class ServedSession:
    """A session with a server, through a connected `EconomicsClient(...).sync()`."""

    def __init__(self, client: EconomicsClient, *, total_budget: int | None = None) -> None:
        """Play through `client`, every episode with `total_budget` tokens if given."""
        self._client = client
        self._total_budget = total_budget

    def reset(self, seed: int) -> EconomicsObservation:
        """Begin an episode."""
        result = self._client.reset(seed=seed, total_budget=self._total_budget)
        observation: EconomicsObservation = result.observation
        return observation

    def answer(self, response: str) -> EconomicsObservation:
        """Answer the current question."""
        result = self._client.step(EconomicsAction(response=response))
        observation: EconomicsObservation = result.observation
        return observation


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeResult:
    """One episode of one agent."""

    seed: int
    total_reward: float
    correct: int
    answered: int
    questions: int
    spent: int
    budget: int
    tokens: list[int]
    """Tokens of each answer, in order."""
    rewards: list[float]
    types: list[str | None]
    """Type of each question answered; None where the environment hides them."""

    def numbers(self) -> dict[str, float]:
        """What a summary averages. Ratios over nothing are 0."""
        return {
            "total_reward": self.total_reward,
            "accuracy": self.correct / self.questions,
            "accuracy_answered": self.correct / self.answered if self.answered else 0.0,
            "answered": self.answered / self.questions,
            "utilisation": self.spent / self.budget,
            "overspend_tokens": float(max(0, self.spent - self.budget)),
            "over_budget": float(self.spent > self.budget),
            "tokens_per_answer": self.spent / self.answered if self.answered else 0.0,
            "correct_per_1000_tokens": 1000 * self.correct / self.spent if self.spent else 0.0,
        }


class Estimate(NamedTuple):
    """A mean with a bootstrap interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Evaluation:
    """All episodes of all agents; episode e of every agent has the same seed."""

    episodes: Mapping[str, list[EpisodeResult]] = field(default_factory=dict)

    def summary(self) -> dict[str, dict[str, Estimate]]:
        """Return per agent the mean of every number over episodes, with 95 % intervals."""
        return {
            agent: {
                name: bootstrap_mean([episode.numbers()[name] for episode in episodes])
                for name in episodes[0].numbers()
            }
            for agent, episodes in self.episodes.items()
        }

    def advantage(self, agent: str, over: str) -> Estimate:
        """Return the mean paired difference of the return of two agents."""
        pairs = zip(self.episodes[agent], self.episodes[over], strict=True)
        return bootstrap_mean([one.total_reward - other.total_reward for one, other in pairs])

    def allocation(self, agent: str) -> dict[str, float]:
        """Return the mean tokens per answer by type of question."""
        by_type: dict[str, list[int]] = {}
        for episode in self.episodes[agent]:
            for kind, tokens in zip(episode.types, episode.tokens, strict=True):
                by_type.setdefault(kind or "hidden", []).append(tokens)
        return {kind: float(np.mean(tokens)) for kind, tokens in sorted(by_type.items())}

    def as_json(self) -> dict[str, Any]:
        """Everything as plain values: summary, allocation, and the episodes themselves."""
        return {
            "summary": {
                agent: {name: estimate._asdict() for name, estimate in numbers.items()}
                for agent, numbers in self.summary().items()
            },
            "allocation": {agent: self.allocation(agent) for agent in self.episodes},
            "episodes": {
                agent: [asdict(episode) for episode in episodes]
                for agent, episodes in self.episodes.items()
            },
        }


def evaluate(
    session: Session, agents: Mapping[str, Agent], *, episodes: int, seed: int
) -> Evaluation:
    """Let every agent play episodes seed, seed + 1, ...; agents that learn do so as they play."""
    return Evaluation(
        {
            name: [play(session, agent, seed + episode) for episode in range(episodes)]
            for name, agent in agents.items()
        }
    )


def play(session: Session, agent: Agent, seed: int) -> EpisodeResult:
    """Play one episode to its end."""
    observation = session.reset(seed)
    rewards: list[float] = []
    types: list[str | None] = []
    while not observation.done:
        allocated = agent.allocator.allocate(observation)
        seen, observation = (
            observation,
            session.answer(agent.solver(observation.question, allocated)),
        )
        reward = float(observation.reward or 0.0)
        agent.allocator.learn(seen, allocated, reward)
        rewards.append(reward)
        types.append(seen.problem_type)
    tokens = [entry.tokens_used for entry in observation.history]
    return EpisodeResult(
        seed=seed,
        total_reward=sum(rewards),
        correct=sum(entry.was_correct for entry in observation.history),
        answered=len(tokens),
        questions=observation.num_questions,
        spent=sum(tokens),
        budget=observation.total_budget,
        tokens=tokens,
        rewards=rewards,
        types=types,
    )


def bootstrap_mean(values: list[float]) -> Estimate:
    """Return the mean with its percentile bootstrap interval (2,000 resamples, fixed seed)."""
    from scipy.stats import bootstrap

    mean = float(np.mean(values))
    if len(set(values)) == 1:
        return Estimate(mean, mean, mean)
    interval = bootstrap(
        (values,),
        np.mean,
        confidence_level=CONFIDENCE,
        n_resamples=RESAMPLES,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return Estimate(mean, float(interval.low), float(interval.high))
