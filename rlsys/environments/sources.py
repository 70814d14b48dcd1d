"""From a configuration to the environment that grows its training or its evaluation groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlsys.config import (
    AnytimeConfig,
    DialogueSection,
    EconomicsDialogue,
    OpenEnvDialogue,
    ReflectionEpisodes,
    RunConfig,
)
from rlsys.environments.dialogue import DialogueEnvironment
from rlsys.environments.economics.ledger import settle_group
from rlsys.environments.report import GroupReport, report_dialogues
from rlsys.environments.thought_sources import anytime_source, reflection_source
from rlsys.environments.turns import TurnEnvironment
from rlsys.environments.wiring import EpisodeSource, Reader, Role, Wiring
from rlsys.tokenization.prompts import PromptRenderer
from rlsys.tokenization.think import think_end_id
from rlsys.tokenization.tokenizer import eos_ids, load_tokenizer
from rlsys.types import Generator, Grader, Group, Problem, Sample

if TYPE_CHECKING:
    from rlsys.environments.openenv.remote import RemoteEnvironment


def episode_source(
    config: RunConfig,
    role: Role,
    generator: Generator,
    grader: Grader,
    max_length: int,
    reader: Reader | None = None,
) -> EpisodeSource:
    """Return what grows the groups of `role`, in sequences of at most `max_length` tokens.

    `reader` is needed to grow training groups with revisions.
    """
    tokenizer = load_tokenizer(config.model.path)
    wiring = Wiring(
        config=config,
        role=role,
        tokenizer=tokenizer,
        decode=lambda ids: str(tokenizer.decode(ids, skip_special_tokens=True)),
        renderer=PromptRenderer(tokenizer, config.data.prompt),
        generator=generator,
        grader=grader,
        max_length=max_length,
        reader=reader,
    )
    match config.environment:
        case AnytimeConfig() as environment:
            return anytime_source(wiring, environment)
        case ReflectionEpisodes() as environment:
            return reflection_source(wiring, environment)
        case EconomicsDialogue() as environment:
            turns = _economics(wiring, environment)
            return _DialogueSource(_dialogue(wiring, environment, turns, max_turns=None))
        case OpenEnvDialogue() as environment:
            turns = remote_environment(environment, wiring.role)
            return _DialogueSource(
                _dialogue(wiring, environment, turns, max_turns=environment.max_turns)
            )


def remote_environment(
    environment: EconomicsDialogue | OpenEnvDialogue, role: Role
) -> RemoteEnvironment:
    """The server that plays the episodes of `role`; nothing is sent yet."""
    from rlsys.environments.openenv.dialects import Dialect, EconomicsDialect, TextDialect
    from rlsys.environments.openenv.remote import RemoteEnvironment

    dialect: Dialect
    match environment:
        case EconomicsDialogue():
            options = {
                "total_budget": environment.episode.total_budget,
                "tokenizer_name": environment.tokenizer_name,
            }
            dialect = EconomicsDialect(
                reset_options={name: v for name, v in options.items() if v is not None}
            )
        case OpenEnvDialogue():
            dialect = TextDialect(
                observation_field=environment.observation_field,
                action_field=environment.action_field,
                remaining_field=environment.remaining_field,
                reset_options=environment.reset_options,
            )
    other = environment.evaluation_url if role == "evaluation" else None
    url = other or environment.url
    assert url is not None
    return RemoteEnvironment(url, dialect, **environment.connection.model_dump())


@dataclass(frozen=True, slots=True)
class _DialogueSource:
    environment: DialogueEnvironment

    async def grow(self, index: int, problem: Problem) -> Group:
        return await self.environment.run_group(index, problem)

    def report(self, group: Group, samples: Sequence[Sample]) -> GroupReport:
        environment = self.environment
        if samples:
            settle_group(group, samples)
        return report_dialogues(group, environment.group_size, samples, environment.decode)


def _economics(wiring: Wiring, environment: EconomicsDialogue) -> TurnEnvironment:
    if environment.url is not None:
        return remote_environment(environment, wiring.role)
    from rlsys.environments.economics.counting import load_tokenizer as load_counter
    from rlsys.environments.economics.turns import EconomicsTurns

    episode = environment.episode
    if not wiring.training:
        episode = episode.model_copy(update={"corpus": environment.evaluation_corpus})
    return EconomicsTurns(episode, load_counter(wiring.config.model.path), wiring.grader)


def _dialogue(
    wiring: Wiring, environment: DialogueSection, turns: TurnEnvironment, *, max_turns: int | None
) -> DialogueEnvironment:
    end = environment.think_end
    return DialogueEnvironment(
        turns=turns,
        renderer=wiring.renderer,
        generator=wiring.generator,
        decode=wiring.decode,
        stop_ids=eos_ids(wiring.tokenizer),
        think_end_id=None if end is None else think_end_id(wiring.tokenizer, end),
        group_size=wiring.group_size,
        reply_tokens=environment.reply_tokens,
        max_length=wiring.max_length,
        max_turns=max_turns,
        temperature=wiring.temperature,
        seed=wiring.seed,
        attempts=environment.attempts,
    )
