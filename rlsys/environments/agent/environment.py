"""Episodes that an agent plays in a process of its own, through an OpenAI-compatible endpoint.

An episode is the token tree of its session (rlsys.environments.agent.session) with one score: the
reward that the agent returned, or the grade of its answer. An agent that fails has the score 0. Its
replies are trained with this score, as those of every other episode of the group.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from rlsys.config import AgentConfig, EnvironmentConfig
from rlsys.config.base import MAX_SEED
from rlsys.environments.agent.agents import Agents, Result, check_agent
from rlsys.environments.agent.interface import Task
from rlsys.environments.agent.report import report_agents
from rlsys.environments.agent.server import ChatServer
from rlsys.environments.agent.session import Policy, Session
from rlsys.environments.base import InputContext, Inputs, ProblemEnvironment, RolloutContext
from rlsys.environments.seeds import derive_seed
from rlsys.grading.answers import extract_answer
from rlsys.tokenization.chat import ChatRenderer
from rlsys.tokenization.think import ThoughtEnd
from rlsys.tokenization.tokenizer import eos_ids
from rlsys.types import (
    NO_PARENT,
    AgentRecord,
    Episode,
    GradingRequest,
    Group,
    GroupReport,
    Kind,
    Problem,
    Sample,
    Segment,
    Verdict,
)

_log = logging.getLogger(__name__)


class AgentEnvironment(ProblemEnvironment):
    """Runs one agent per episode, and serves the policy to all of them."""

    Config: ClassVar[type[EnvironmentConfig]] = AgentConfig

    @classmethod
    def inputs(cls, context: InputContext) -> Inputs:
        """Check that the agent can be imported and the chat template be used; load the problems."""
        settings = context.settings(AgentConfig)
        ChatRenderer(context.tokenizer)
        ThoughtEnd.resolve(context.tokenizer, settings.think_end)
        if settings.agent is not None:
            check_agent(settings.agent)
        return super().inputs(context)

    @classmethod
    def tokens_after_prompt(cls, context: InputContext) -> int:
        """What the agent adds may be of any length, so an episode may fill the whole context."""
        budget = context.config.environment.longest_episode
        return max(budget, context.limit - context.config.data.prompt.max_tokens)

    def __init__(self, context: RolloutContext) -> None:
        """Nothing is started before the first rollout."""
        super().__init__(context)
        settings = context.settings(AgentConfig)
        self._policy = Policy(
            generator=context.generator,
            renderer=ChatRenderer(context.tokenizer),
            decode=context.decode,
            thought_end=ThoughtEnd.resolve(context.tokenizer, settings.think_end),
            stop_ids=eos_ids(context.tokenizer),
            temperature=context.temperature,
            top_p=context.top_p,
            reply_tokens=settings.reply_tokens,
            exact_history=settings.history == "exact",
            budget=settings.budget,
            max_length=context.max_length,
        )
        self._server = ChatServer()
        self._agents = Agents(settings.agent, settings.command, settings.time_limit_s)
        self._places = asyncio.Semaphore(settings.max_agents)
        self._started: asyncio.Task[None] | None = None

    async def rollout(self, index: int, task: Problem) -> Group:
        """Run the agents of the group at the same time."""
        if self._started is None:
            self._started = asyncio.create_task(self._server.start())
        await self._started
        episodes = await asyncio.gather(
            *(self._episode(index, task, number) for number in range(self.context.group_size))
        )
        return Group(index=index, task=task, episodes=tuple(episodes))

    def report(self, group: Group, samples: Sequence[Sample]) -> GroupReport:
        """Report scores, lengths, calls and failures."""
        budget = self.context.settings(AgentConfig).budget
        return report_agents(group, samples, self.context.decode, budget)

    async def close(self) -> None:
        """End all agents and the server."""
        await self._agents.close()
        await self._server.close()

    async def _episode(self, index: int, problem: Problem, number: int) -> Episode:
        # From the index of the group alone, so that all episodes of a group get the same task.
        seed = derive_seed(self.context.seed, index, "task") & MAX_SEED
        task = Task(
            id=problem.id,
            text=problem.text,
            answer=problem.answer,
            seed=seed,
            budget=self._policy.budget,
        )
        async with self._places:
            await self._agents.start()
            session = Session(self._policy, derive_seed(self.context.seed, index, "agent", number))
            with self._server.serving(session) as endpoint:
                result = await self._agents.run(task, endpoint, session)
        if result.failure is not None:
            _log.warning("group %d, episode %d scores 0: %s", index, number, result.failure)
        return self._played(problem, session, await self._grade(problem, result), result.failure)

    async def _grade(self, problem: Problem, result: Result) -> tuple[float, Verdict]:
        """Return the score of an agent, and the verdict for the report."""
        if result.answer is not None:
            boxed = extract_answer(result.answer) is not None
            text = result.answer if boxed else f"\\boxed{{{result.answer}}}"
            (verdict,) = await self.context.grader.grade([GradingRequest(text, problem.answer)])
            return float(verdict is Verdict.RIGHT), verdict
        reward = result.reward or 0.0
        return reward, Verdict.RIGHT if reward > 0 else Verdict.WRONG

    def _played(
        self, problem: Problem, session: Session, graded: tuple[float, Verdict], failure: str | None
    ) -> Episode:
        segments, (score, verdict) = session.tree.segments, graded
        if not segments:
            # The agent got no reply. Its score still counts in the baseline of the group.
            prompt = self.context.renderer.render(problem)
            segments = [Segment(parent=NO_PARENT, cut=0, kind=Kind.PROMPT, token_ids=prompt)]
        replies = [i for i, segment in enumerate(segments) if segment.kind.sampled]
        return Episode(
            segments=tuple(segments),
            scores=np.array([score], np.float32),
            answer_segments=np.array(replies[-1:] or [0], np.int32),
            splits=np.array([0], np.int32),
            verdicts=np.array([verdict], np.int8),
            agent=AgentRecord(session.calls, session.branches, failure),
        )
