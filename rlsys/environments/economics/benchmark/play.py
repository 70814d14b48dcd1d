"""Let agents play the same episodes, from their first question to their end."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from rlsys.environments.economics.benchmark.results import EpisodeResult
from rlsys.environments.economics.benchmark.sessions import Answer, ResetWith, Session, Sessions
from rlsys.environments.economics.models import MAX_BUDGET, EconomicsObservation


class Agent(Protocol):
    """Whoever answers."""

    @property
    def concurrency(self) -> int:
        """Episodes to play at once; 1 for an agent that learns from one to the next."""
        ...

    async def answer(self, seen: EconomicsObservation) -> Answer:
        """Answer the question in `seen`."""
        ...

    def learn(self, seen: EconomicsObservation, answer: Answer, reward: float) -> None:
        """Take note of the reward for `answer`, given when `seen` was seen."""
        ...


class Paper(NamedTuple):
    """All questions of an episode, as an oracle sees them beforehand."""

    texts: tuple[str, ...]
    types: tuple[str | None, ...]


async def read_papers(session: Session, seeds: Sequence[int]) -> dict[int, Paper]:
    """Return the questions of every seed, by answering them with nothing on a huge budget."""
    return {seed: await _read_paper(session, seed) for seed in seeds}


async def _read_paper(session: Session, seed: int) -> Paper:
    seen = await session.reset(seed, ResetWith(total_budget=MAX_BUDGET))
    pages = []
    while not seen.done:
        pages.append((seen.question, seen.problem_type))
        seen = await session.answer(Answer(""))
    texts, types = zip(*pages, strict=True)
    return Paper(texts, types)


async def evaluate(
    agent: Agent, sessions: Sessions, papers: Mapping[int, Paper], options: ResetWith
) -> list[EpisodeResult]:
    """Let an agent play the episode of every seed in `papers`; results are in that order."""
    results: dict[int, EpisodeResult] = {}
    waiting = iter(papers.items())

    async def play_some() -> None:
        async with sessions() as session:
            for seed, paper in waiting:  # shared: whoever is free takes the next one
                results[seed] = await play(session, agent, seed, paper, options)

    await asyncio.gather(*(play_some() for _ in range(min(agent.concurrency, len(papers)))))
    return [results[seed] for seed in papers]


async def play(
    session: Session, agent: Agent, seed: int, paper: Paper, options: ResetWith
) -> EpisodeResult:
    """Play one episode to its end."""
    seen = await session.reset(seed, options)
    rewards: list[float] = []
    failures = 0
    while not seen.done:
        answer = await agent.answer(seen)
        acted_on, seen = seen, await session.answer(answer)
        rewards.append(float(seen.reward or 0.0))
        failures += answer.failed
        agent.learn(acted_on, answer, rewards[-1])
    return EpisodeResult(
        seed=seed,
        questions=seen.num_questions,
        budget=seen.total_budget,
        tokens=tuple(entry.tokens_used for entry in seen.history),
        right=tuple(entry.was_correct for entry in seen.history),
        rewards=tuple(rewards),
        end_reward=seen.reward_parts.bonus + seen.reward_parts.unanswered,
        types=paper.types,
        failures=failures,
    )
