"""Plays episodes with an agent, from the first question to the end."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rlsys.config.economics import MAX_BUDGET
from rlsys.environments.economics.benchmark.agents import Agent, AgentAnswer
from rlsys.environments.economics.benchmark.results import EpisodeResult
from rlsys.environments.economics.benchmark.sessions import (
    OpenSession,
    PlaySession,
    ResetArguments,
)


class QuestionSheet(NamedTuple):
    """All questions of one episode in order, known before it is played."""

    texts: tuple[str, ...]
    types: tuple[str | None, ...]
    """Type of each question; None if the environment hides types."""


async def read_question_sheets(
    session: PlaySession, seeds: Sequence[int]
) -> dict[int, QuestionSheet]:
    """Return the questions of every seed."""
    return {seed: await _read_question_sheet(session, seed) for seed in seeds}


async def _read_question_sheet(session: PlaySession, seed: int) -> QuestionSheet:
    # No message lists the questions, so they are answered with empty texts on the largest budget,
    # which never runs out before the last question.
    seen = await session.reset(seed, ResetArguments(total_budget=MAX_BUDGET))
    questions = []
    while not seen.done:
        questions.append((seen.question, seen.problem_type))
        seen = await session.answer(AgentAnswer(""))
    texts, types = zip(*questions, strict=True)
    return QuestionSheet(texts, types)


async def play_episodes(
    agent: Agent,
    open_session: OpenSession,
    sheets: Mapping[int, QuestionSheet],
    arguments: ResetArguments,
) -> list[EpisodeResult]:
    """Let an agent play the episode of every seed in `sheets`; return the results in that order."""
    results: dict[int, EpisodeResult] = {}
    waiting = iter(sheets.items())

    async def play_some() -> None:
        async with open_session() as session:
            for seed, sheet in waiting:  # all tasks take from one iterator
                results[seed] = await play_episode(session, agent, seed, sheet, arguments)

    await asyncio.gather(*(play_some() for _ in range(min(agent.concurrency, len(sheets)))))
    return [results[seed] for seed in sheets]


async def play_episode(
    session: PlaySession, agent: Agent, seed: int, sheet: QuestionSheet, arguments: ResetArguments
) -> EpisodeResult:
    """Play one episode to its end."""
    seen = await session.reset(seed, arguments)
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
        end_reward=seen.reward_parts.end_reward,
        types=sheet.types,
        failures=failures,
    )
