"""Agents: objects that answer the questions of an episode."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from rlsys.environments.economics.benchmark.allocators import Allocator
from rlsys.environments.economics.benchmark.solvers import Solver
from rlsys.environments.economics.models import EconomicsObservation


class AgentAnswer(NamedTuple):
    """An agent's answer to one question."""

    text: str
    """The whole answer. All of it is charged."""
    visible: str | None = None
    """The end of `text` that is graded, if a thought comes before it; None grades all of it."""
    sampled_tokens: int | None = None
    """Number of sampled ids, charged by an environment that trusts its client."""
    allocated: int | None = None
    """Tokens that the allocator granted; None for agents without an allocator."""
    failed: bool = False
    """True if the model could not be asked. `text` is then empty."""


class Agent(Protocol):
    """Answers the questions of an episode."""

    @property
    def concurrency(self) -> int:
        """Episodes to play at the same time; 1 for an agent that learns between episodes."""
        ...

    async def answer(self, seen: EconomicsObservation) -> AgentAnswer:
        """Answer the question in `seen`."""
        ...

    def learn(self, seen: EconomicsObservation, answer: AgentAnswer, reward: float) -> None:
        """Use the reward of `answer`, which was the answer to `seen`."""
        ...


class AllocatorAgent(NamedTuple):
    """An allocator sets the length of each answer, and a solver writes it."""

    allocator: Allocator
    solver: Solver

    @property
    def concurrency(self) -> int:
        """1, because LinUCB learns between episodes; the other allocators are fast enough."""
        return 1

    async def answer(self, seen: EconomicsObservation) -> AgentAnswer:
        """Answer with at most the allocated tokens."""
        allocated = self.allocator.allocate(seen)
        return AgentAnswer(self.solver(seen.question, allocated), allocated=allocated)

    def learn(self, seen: EconomicsObservation, answer: AgentAnswer, reward: float) -> None:
        """Pass the reward on to the allocator."""
        assert answer.allocated is not None
        self.allocator.learn(seen, answer.allocated, reward)
