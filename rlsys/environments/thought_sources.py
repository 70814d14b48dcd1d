"""Sources whose episodes are one thought: anytime, and reflection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rlsys.algorithms.reflection import count_reflections
from rlsys.config import (
    AnytimeConfig,
    BrpoConfig,
    ReflectionEpisodes,
    RevisionConfig,
    ThoughtSection,
)
from rlsys.environments.anytime import AnytimeEnvironment
from rlsys.environments.reflection import ReflectionEnvironment, Revising
from rlsys.environments.report import GroupReport, report_anytime
from rlsys.environments.report_reflection import report_reflections, report_thoughts
from rlsys.environments.wiring import EpisodeSource, Wiring
from rlsys.reflection.detector import ReflectionDetector
from rlsys.tokenization.decoding import token_texts
from rlsys.tokenization.prompts import PromptRenderer
from rlsys.tokenization.think import ThinkTokens
from rlsys.tokenization.tokenizer import load_tokenizer
from rlsys.types import Decode, Group, Problem, Sample

Report = Callable[[Group, AnytimeEnvironment, Sequence[Sample], Decode], GroupReport]


@dataclass(frozen=True, slots=True)
class _ThoughtSource:
    environment: AnytimeEnvironment
    renderer: PromptRenderer
    reduce: Report

    async def grow(self, index: int, problem: Problem) -> Group:
        return await self.environment.run_group(index, problem, self.renderer.render(problem))

    def report(self, group: Group, samples: Sequence[Sample]) -> GroupReport:
        return self.reduce(group, self.environment, samples, self.environment.decode)


@dataclass(frozen=True, slots=True)
class _ReflectionSource:
    environment: ReflectionEnvironment
    renderer: PromptRenderer

    async def grow(self, index: int, problem: Problem) -> Group:
        return await self.environment.run_group(index, problem, self.renderer.render(problem))

    def report(self, group: Group, samples: Sequence[Sample]) -> GroupReport:
        grower = self.environment.originals
        return report_reflections(group, grower, samples, grower.decode)


def anytime_source(wiring: Wiring, environment: AnytimeConfig) -> EpisodeSource:
    """Grow thoughts that are cut at every budget."""
    if not wiring.training:
        return _evaluation_source(wiring, environment)
    algorithm = wiring.config.algorithm
    shaped = isinstance(algorithm, BrpoConfig) and algorithm.shaping is not None
    budgets, answers = environment.budgets, environment.answers
    grower = _thoughts(wiring, environment, counted=shaped, budgets=budgets, answers=answers)
    return _ThoughtSource(grower, wiring.renderer, report_anytime)


def _evaluation_source(wiring: Wiring, environment: ThoughtSection) -> EpisodeSource:
    """Grow thoughts under the budgets of the evaluation, whatever is trained on."""
    return _ThoughtSource(
        _thoughts(wiring, environment, counted=True), wiring.renderer, report_thoughts
    )


def _thoughts(
    wiring: Wiring,
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


def reflection_source(wiring: Wiring, environment: ReflectionEpisodes) -> EpisodeSource:
    """Grow originals and revisions."""
    if not wiring.training:
        return _evaluation_source(wiring, environment)
    budgets = (environment.budget,)
    originals = _thoughts(wiring, environment, counted=True, budgets=budgets, answers=1)
    revision = environment.revision
    revising = None
    if revision is not None:
        revising = _revising(wiring, revision, environment.revision_tokens)
    return _ReflectionSource(
        ReflectionEnvironment(originals=originals, revising=revising), wiring.renderer
    )


def _revising(wiring: Wiring, revision: RevisionConfig, answer_tokens: int) -> Revising:
    assert wiring.reader is not None
    detector = ReflectionDetector(
        wiring.reader.generator,
        load_tokenizer(revision.reader.path),
        revision.detector,
        max_length=wiring.reader.max_length,
        policy_texts=lambda ids: token_texts(wiring.tokenizer, ids.tolist()),
        until_first=revision.strength == "first",
    )
    return Revising(detector=detector, strength=revision.strength, answer_tokens=answer_tokens)
