"""From a configuration to the environment that grows its training or its evaluation groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from rlsys.algorithms.reflection import count_reflections
from rlsys.config import (
    AnytimeConfig,
    BrpoConfig,
    DialogueSection,
    EconomicsDialogue,
    OpenEnvDialogue,
    RunConfig,
)
from rlsys.config_parts import ThoughtSection
from rlsys.config_reflection import ReflectionEpisodes, RevisionConfig
from rlsys.data.decoding import token_texts
from rlsys.data.prompts import (
    PromptRenderer,
    ThinkTokens,
    eos_ids,
    load_tokenizer,
    think_end_id,
)
from rlsys.environments.anytime import AnytimeEnvironment
from rlsys.environments.dialogue import DialogueEnvironment
from rlsys.environments.economics.ledger import settle_group
from rlsys.environments.reflection import ReflectionEnvironment, Revising
from rlsys.environments.report import Decode, GroupReport, report_anytime, report_dialogues
from rlsys.environments.report_reflection import report_reflections, report_thoughts
from rlsys.environments.turns import TurnEnvironment
from rlsys.reflection.detector import ReflectionDetector
from rlsys.types import Generator, Grader, Group, Problem, Sample

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from rlsys.environments.remote import RemoteEnvironment

Role = Literal["training", "evaluation"]


class EpisodeSource(Protocol):
    """Grows groups and tells of them."""

    async def grow(self, index: int, problem: Problem) -> Group:
        """Grow the group at this place in the admission order."""
        ...

    def report(self, group: Group, samples: Sequence[Sample]) -> GroupReport:
        """What the driver learns of a group."""
        ...


@dataclass(frozen=True, slots=True)
class Reader:
    """The frozen reflection model of a run."""

    generator: Generator
    max_length: int
    """Most tokens of a prompt and its reply together."""


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
    wiring = _Wiring(
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
            return _AnytimeSource(_anytime(wiring, environment), wiring.renderer)
        case ReflectionEpisodes() as environment:
            return _reflection(wiring, environment)
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
    from rlsys.environments.dialects import Dialect, EconomicsDialect, TextDialect
    from rlsys.environments.remote import RemoteEnvironment

    dialect: Dialect
    match environment:
        case EconomicsDialogue():
            budget = environment.episode.total_budget
            dialect = EconomicsDialect(
                reset_options={} if budget is None else {"total_budget": budget}
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wiring:
    """What all environments are made from."""

    config: RunConfig
    role: Role
    tokenizer: PreTrainedTokenizerBase
    decode: Decode
    renderer: PromptRenderer
    generator: Generator
    grader: Grader
    max_length: int
    reader: Reader | None

    @property
    def training(self) -> bool:
        return self.role == "training"

    @property
    def group_size(self) -> int:
        config = self.config
        return config.batch.group_size if self.training else config.evaluation.samples

    @property
    def temperature(self) -> float:
        config = self.config
        return config.generation.temperature if self.training else config.evaluation.temperature

    @property
    def seed(self) -> int:
        return self.config.seed + (not self.training)


@dataclass(frozen=True, slots=True)
class _AnytimeSource:
    environment: AnytimeEnvironment
    renderer: PromptRenderer

    async def grow(self, index: int, problem: Problem) -> Group:
        return await self.environment.run_group(index, problem, self.renderer.render(problem))

    def report(self, group: Group, samples: Sequence[Sample]) -> GroupReport:
        return report_anytime(group, self.environment, samples, self.environment.decode)


@dataclass(frozen=True, slots=True)
class _ReflectionSource:
    environment: ReflectionEnvironment
    renderer: PromptRenderer

    async def grow(self, index: int, problem: Problem) -> Group:
        return await self.environment.run_group(index, problem, self.renderer.render(problem))

    def report(self, group: Group, samples: Sequence[Sample]) -> GroupReport:
        grower = self.environment.originals
        return report_reflections(group, grower, samples, grower.decode)


@dataclass(frozen=True, slots=True)
class _ThoughtSource:
    """Evaluates thoughts under several budgets, without revisions."""

    environment: AnytimeEnvironment
    renderer: PromptRenderer

    async def grow(self, index: int, problem: Problem) -> Group:
        return await self.environment.run_group(index, problem, self.renderer.render(problem))

    def report(self, group: Group, samples: Sequence[Sample]) -> GroupReport:
        return report_thoughts(group, self.environment, samples, self.environment.decode)


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


def _anytime(wiring: _Wiring, environment: AnytimeConfig) -> AnytimeEnvironment:
    algorithm = wiring.config.algorithm
    shaped = isinstance(algorithm, BrpoConfig) and algorithm.shaping is not None
    if not wiring.training:
        return _thoughts(wiring, environment, counted=shaped)
    budgets, answers = environment.budgets, environment.answers
    return _thoughts(wiring, environment, counted=shaped, budgets=budgets, answers=answers)


def _thoughts(
    wiring: _Wiring,
    environment: ThoughtSection,
    *,
    counted: bool,
    budgets: tuple[int, ...] | None = None,
    answers: int | None = None,
) -> AnytimeEnvironment:
    """Thoughts answered at budgets; by default those of the evaluation."""
    config, counting = wiring.config, environment.reflections

    def count(thought: Sequence[int]) -> int:
        text = wiring.decode(thought)
        return count_reflections(text, counting.mode, words=counting.words, gap=counting.gap)

    return AnytimeEnvironment(
        budgets=budgets or config.evaluation_budgets,
        answers=answers or config.evaluation.answers,
        answer_tokens=environment.answer_tokens,
        group_size=wiring.group_size,
        temperature=wiring.temperature,
        seed=wiring.seed,
        think=ThinkTokens.resolve(wiring.tokenizer, environment),
        decode=wiring.decode,
        generator=wiring.generator,
        grader=wiring.grader,
        count_reflections=count if counted else None,
    )


def _reflection(wiring: _Wiring, environment: ReflectionEpisodes) -> EpisodeSource:
    if not wiring.training:
        return _ThoughtSource(_thoughts(wiring, environment, counted=True), wiring.renderer)
    budgets = (environment.budget,)
    originals = _thoughts(wiring, environment, counted=True, budgets=budgets, answers=1)
    revision = environment.revision
    revising = None
    if revision is not None:
        revising = _revising(wiring, revision, environment.revision_tokens)
    return _ReflectionSource(
        ReflectionEnvironment(originals=originals, revising=revising), wiring.renderer
    )


def _revising(wiring: _Wiring, revision: RevisionConfig, answer_tokens: int) -> Revising:
    assert wiring.reader is not None
    detector = ReflectionDetector(
        wiring.reader.generator,
        load_tokenizer(revision.reader.path),
        revision.detector,
        max_length=wiring.reader.max_length,
        policy_texts=lambda ids: token_texts(wiring.tokenizer, ids.tolist()),
    )
    return Revising(detector=detector, strength=revision.strength, answer_tokens=answer_tokens)


def _economics(wiring: _Wiring, environment: EconomicsDialogue) -> TurnEnvironment:
    if environment.url is not None:
        return remote_environment(environment, wiring.role)
    from rlsys.environments.economics.counting import load_tokenizer as load_counter
    from rlsys.environments.economics.turns import EconomicsTurns

    episode = environment.episode
    if not wiring.training:
        episode = episode.model_copy(update={"corpus": environment.evaluation_corpus})
    return EconomicsTurns(episode, load_counter(wiring.config.model.path), wiring.grader)


def _dialogue(
    wiring: _Wiring, environment: DialogueSection, turns: TurnEnvironment, *, max_turns: int | None
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
