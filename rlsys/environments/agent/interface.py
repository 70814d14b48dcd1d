"""What an agent gets and returns. This module imports nothing, so agents may import it freely.

    async def agent(task: Task, endpoint: Endpoint) -> float | str:
        client = AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key)
        ...

A number is the score of the episode. A text is an answer, which is compared with the gold answer of
the problem: 1 if it is right, and else 0.
"""

from __future__ import annotations

from typing import NamedTuple


class Task(NamedTuple):
    """The problem of an episode."""

    id: str
    text: str
    answer: str
    """The gold answer; several are joined by the ASCII unit separator."""
    seed: int
    """The same in all episodes of a group, for environments that draw their own tasks."""
    budget: int
    """Most sampled tokens of the episode. `usage.completion_tokens` of every reply is taken from it
    exactly."""


class Endpoint(NamedTuple):
    """Where an episode's agent reaches the policy, for any client of the OpenAI API."""

    base_url: str
    api_key: str
    """Belongs to this episode alone, and is refused once the episode has ended."""
    model: str
