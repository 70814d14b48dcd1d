"""Environments whose episodes are played by an agent in a process of its own."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from rlsys.config.environments import EnvironmentConfig


class AgentConfig(EnvironmentConfig):
    """An agent that calls the policy through an OpenAI-compatible endpoint (docs/agents.md)."""

    length_keys = "environment.budget"

    type: Literal["agent"] = "agent"
    agent: str | None = None
    """Import path of the agent, as in my_package.my_agent:solve. Its module is imported once per
    environment actor, and every episode is a fork; start threads and clients in the function."""
    command: tuple[str, ...] = Field(default=())
    """Program and arguments of an agent, in place of `agent`. It reads the problem as JSON from its
    input, and writes {"reward": 0.5} or {"answer": "42"} as its last line."""
    budget: PositiveInt = 2048
    """Most sampled tokens of an episode, in all calls together."""
    reply_tokens: PositiveInt = 512
    """Most sampled tokens of one reply, thought included."""
    think_end: str | None = None
    """The text that ends a thought; the agent gets the text after it as the content of a reply.
    None for a model that does not think."""
    history: Literal["exact", "template"] = "exact"
    """What a call sees of earlier replies: `exact` their sampled ids, thoughts included; `template`
    what the chat template makes of all messages, as a server does that serves the model later. Many
    templates drop earlier thoughts; every call is then a branch of its own."""
    time_limit_s: PositiveFloat = 300.0
    """How long an agent may take, without the time in which the policy writes its replies. An agent
    that takes longer is killed, and its episode scores 0."""
    max_agents: PositiveInt = 64
    """Agents that run at the same time, for each environment actor."""

    @model_validator(mode="after")
    def _one_agent(self) -> AgentConfig:
        if (self.agent is None) == (not self.command):
            raise ValueError(
                f"environment.agent {self.agent!r} and environment.command "
                f"{list(self.command)} must not both be given or both be left out; set agent to an "
                "import path, or command to a program"
            )
        return self

    @property
    def longest_episode(self) -> int:
        """The budget."""
        return self.budget
