"""An agent that plays an OpenEnv environment, for `environment.type: agent`.

    rlsys serve-env environment.problems=3 "environment.corpus.terms=[2,2]"
    rlsys train run.yaml environment.agent=docs.recipes.agent_openenv:play

docs/agents.md explains it. For another environment, change the names of its fields.
"""

from __future__ import annotations

import os
from typing import Any

from openai import AsyncOpenAI, BadRequestError
from openenv.core import GenericEnvClient

from rlsys.environments.agent.interface import Endpoint, Task

URL = os.environ.get("ENVIRONMENT_URL", "http://127.0.0.1:8000")


async def play(task: Task, endpoint: Endpoint) -> float:
    """Play one episode; the score is the sum of its rewards."""
    client = AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key)
    chat: list[Any] = []
    score = 0.0
    async with GenericEnvClient(base_url=URL) as session:
        # All episodes of a group have the same seed, and so the same questions.
        result = await session.reset(seed=task.seed)
        while not result.done:
            chat.append({"role": "user", "content": result.observation["question"]})
            try:
                completion = await client.chat.completions.create(
                    model=endpoint.model, messages=chat
                )
            except BadRequestError:  # the budget or the context is used up
                break
            chat.append(completion.choices[0].message)
            result = await session.step({"response": chat[-1].content or ""})
            score += result.reward or 0.0
    return score
