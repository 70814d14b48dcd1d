"""Groups of episodes that agents play in real processes over real HTTP, with a fake engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import psutil
from commands import wait_until
from scripted import sample

from rlsys.config import RunConfig
from rlsys.environments.agent.environment import AgentEnvironment
from rlsys.environments.base import RolloutContext
from rlsys.grading.compare import decide, extract_answer
from rlsys.tokenization.prompts import PromptRenderer
from rlsys.tokenization.tokenizer import encode, load_tokenizer
from rlsys.types import Completion, GenerationRequest, GradingRequest, Group, Problem, Verdict

TOKENIZER = load_tokenizer("tiny")
PROBLEM = Problem(id="p", text="3+2", answer="5")


class Engine:
    """Writes what a function makes of the prompt, and the end of turn."""

    def __init__(
        self,
        write: Callable[[str], str] = lambda prompt: "12</think> 5 ",
        error: Exception | None = None,
    ) -> None:
        self.requests: list[GenerationRequest] = []
        self._write = write
        self._error = error

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[list[Completion]]:
        self.requests += requests
        if self._error is not None:
            raise self._error
        return [[sample(request, self._ids(request))] for request in requests]

    def _ids(self, request: GenerationRequest) -> list[int]:
        written = self._write(TOKENIZER.decode(request.token_ids))
        return [*encode(TOKENIZER, written), TOKENIZER.eos_token_id]


class PureGrader:
    """Decides without computer algebra."""

    async def grade(self, requests: Sequence[GradingRequest]) -> list[Verdict]:
        verdicts = [decide(extract_answer(r.response), r.gold) for r in requests]
        return [Verdict.INVALID if v is None else v for v in verdicts]


def config_of(**settings: Any) -> RunConfig:
    environment = {"type": "agent", "think_end": "</think>", "budget": 64, **settings}
    return RunConfig.model_validate(
        {
            "environment": environment,
            "algorithm": {"method": "grpo"},
            "batch": {"problems": 1, "group_size": 2},
        }
    )


def environment_of(engine: Engine | None = None, **settings: Any) -> AgentEnvironment:
    """The environment of training groups."""
    config = config_of(**settings)
    return AgentEnvironment(
        RolloutContext(
            config=config,
            role="training",
            tokenizer=TOKENIZER,
            decode=lambda ids: str(TOKENIZER.decode(ids, skip_special_tokens=True)),
            renderer=PromptRenderer(TOKENIZER, config.data.prompt),
            generator=engine or Engine(),
            grader=PureGrader(),
            max_length=1024,
        )
    )


def play(
    engine: Engine | None = None, problem: Problem = PROBLEM, **settings: Any
) -> tuple[Group, AgentEnvironment]:
    """Roll out one group; at its end no agent is left, and after `close` no process."""
    environment = environment_of(engine, **settings)
    others = set(psutil.Process().children())

    async def roll() -> Group:
        try:
            group = await environment.rollout(0, problem)
            (keeper,) = set(psutil.Process().children()) - others
            (host,) = keeper.children()
            assert wait_until(lambda: host.children() == [], 60)  # a killed agent ends in its time
            return group
        finally:
            await environment.close()

    group = asyncio.run(roll())
    assert set(psutil.Process().children()) <= others
    return group, environment
