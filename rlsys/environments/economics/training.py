"""Training on problems that share one token budget, in the environment actors or on a server."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import ClassVar, Self, get_args

from rlsys.config import EconomicsDialogue, EnvironmentConfig
from rlsys.environments.base import InputContext, Inputs, Role, RolloutContext
from rlsys.environments.dialogue import DialogueEnvironment
from rlsys.environments.dialogue_inputs import dialogue_inputs
from rlsys.environments.economics.counting import load_tokenizer as load_counter
from rlsys.environments.economics.dialect import EconomicsDialect
from rlsys.environments.economics.ledger import settle_group
from rlsys.environments.economics.questions import load_corpus
from rlsys.environments.economics.turns import SHOWN, EconomicsTurns
from rlsys.environments.openenv.environment import PROBES, check_servers, served_by
from rlsys.environments.openenv.remote import RemoteEnvironment
from rlsys.environments.turns import TurnEnvironment
from rlsys.types import Group, GroupReport, Sample


class SharedBudgetEnvironment(DialogueEnvironment):
    """Dialogues of the economics environment."""

    Config: ClassVar[type[EnvironmentConfig]] = EconomicsDialogue

    @classmethod
    def inputs(cls, context: InputContext) -> Inputs:
        """Load the questions, or check the servers that ask them."""
        settings = context.settings(EconomicsDialogue)
        # As wide as numbers get, so that no turn is longer than the longest of these.
        widest = dict.fromkeys(SHOWN, float(settings.longest_episode))
        if settings.url is not None:
            servers = [_server(settings, settings.url, role) for role in get_args(Role)]
            asyncio.run(check_servers(servers))
            where = served_by(context, servers)
            return dialogue_inputs(context, PROBES, widest, where, complete=False)
        corpus, held_out = map(load_corpus, (settings.episode.corpus, settings.evaluation_corpus))
        longest = [
            max((question.text for question in questions), key=len)
            for questions in (*held_out.by_type.values(), *corpus.by_type.values())
        ]
        where = (
            f"episodes of {settings.episode.problems} problems from {corpus.source}; evaluated on "
            f"{context.config.evaluation.problems} from {held_out.source}"
        )
        return dialogue_inputs(context, longest, widest, where, complete=True)

    @classmethod
    def create(cls, context: RolloutContext) -> Self:
        """The evaluation plays on its own questions or server."""
        settings = context.settings(EconomicsDialogue)
        return cls.over(_turns(settings, context), context, max_turns=None)

    def report(self, group: Group, samples: Sequence[Sample]) -> GroupReport:
        """Check that every charged token is trained or accounted for, then report."""
        if samples:
            settle_group(group, samples)
        return super().report(group, samples)


def _turns(settings: EconomicsDialogue, context: RolloutContext) -> TurnEnvironment:
    if settings.url is not None:
        return _server(settings, settings.url, context.role)
    episode = settings.episode
    if not context.training:
        episode = episode.model_copy(update={"corpus": settings.evaluation_corpus})
    return EconomicsTurns(episode, load_counter(context.config.model.path), context.grader)


def _server(settings: EconomicsDialogue, url: str, role: Role) -> RemoteEnvironment:
    """The server that plays the episodes of `role`; nothing is sent yet."""
    options = {
        "total_budget": settings.episode.total_budget,
        "tokenizer_name": settings.tokenizer_name,
    }
    dialect = EconomicsDialect(
        reset_options={name: v for name, v in options.items() if v is not None}
    )
    other = settings.evaluation_url if role == "evaluation" else None
    return RemoteEnvironment(other or url, dialect, **settings.connection.model_dump())
