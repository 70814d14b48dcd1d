"""Training on any OpenEnv environment that shows a text and takes a text."""

from __future__ import annotations

import asyncio
from typing import ClassVar, Final, Self, get_args

from rlsys.config import EnvironmentConfig, OpenEnvDialogue
from rlsys.environments.base import InputContext, Inputs, Role, RolloutContext
from rlsys.environments.dialogue import DialogueEnvironment
from rlsys.environments.dialogue_inputs import dialogue_inputs
from rlsys.environments.openenv.dialects import TextDialect
from rlsys.environments.openenv.remote import RemoteEnvironment

PROBES: Final = ("What is 3+8-2?", "Say what you see.", "Which is larger, 7 or 12?", "Go on.")
"""Texts of the canary prompts, on which engine and learner are compared. The questions of the
server are not known before the run."""


class ServedEnvironment(DialogueEnvironment):
    """Dialogues with a served environment."""

    Config: ClassVar[type[EnvironmentConfig]] = OpenEnvDialogue

    @classmethod
    def inputs(cls, context: InputContext) -> Inputs:
        """Check the servers of training and evaluation, and return the seeds of the run."""
        settings = context.settings(OpenEnvDialogue)
        servers = [_server(settings, role) for role in get_args(Role)]
        asyncio.run(check_servers(servers))
        return dialogue_inputs(context, PROBES, {}, served_by(context, servers), complete=False)

    @classmethod
    def create(cls, context: RolloutContext) -> Self:
        """Return an environment that plays on the server for the role of `context`."""
        settings = context.settings(OpenEnvDialogue)
        return cls.over(_server(settings, context.role), context, max_turns=settings.max_turns)


async def check_servers(servers: list[RemoteEnvironment]) -> None:
    """Raise ConfigError for the first server that episodes cannot be played on."""
    for server in servers:
        await server.check()


def served_by(context: InputContext, servers: list[RemoteEnvironment]) -> str:
    """Return a phrase that names the source of the episodes."""
    urls = dict.fromkeys(server.url for server in servers)
    episodes = context.config.evaluation.problems
    return f"episodes from {' and '.join(urls)}, {episodes} in an evaluation"


def _server(settings: OpenEnvDialogue, role: Role) -> RemoteEnvironment:
    """Return the server for the episodes of `role`; nothing is sent yet."""
    dialect = TextDialect(
        observation_field=settings.observation_field,
        action_field=settings.action_field,
        remaining_field=settings.remaining_field,
        reset_options=settings.reset_options,
    )
    other = settings.evaluation_url if role == "evaluation" else None
    return RemoteEnvironment(other or settings.url, dialect, **settings.connection.model_dump())
