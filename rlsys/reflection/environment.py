"""Episodes of REA-RL: a thought, its answer, and a revised answer (arXiv 2505.19862).

The frozen reflection model finds the chunk of a thought that first states the answer. Meanwhile the
policy answers at the end of the thought. Then the policy answers once more after that chunk.

The revision is a branch of the tree. It keeps the sampled ids up to the cut, which the engine that
sampled them has in its prefix cache. The end of the thought is forced, and only the revised answer
is sampled.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

from rlsys.algorithms.reflection import Strength
from rlsys.config import EnvironmentConfig, ReflectionEpisodes, RevisionConfig
from rlsys.environments.anytime import AnytimeEnvironment
from rlsys.environments.base import (
    EnvironmentClass,
    InputContext,
    Inputs,
    RolloutContext,
    problem_inputs,
)
from rlsys.environments.seeds import derive_seed
from rlsys.environments.thought_setup import tokens_after_prompt
from rlsys.environments.thoughts import AnswerBranch, GradedAnswer, RestRequest
from rlsys.reflection.detector import (
    Detection,
    Detector,
    ReflectionDetector,
    SampledThought,
    check_labels,
)
from rlsys.reflection.prompts import layout_named
from rlsys.reflection.report import report_revisions
from rlsys.tokenization.decoding import token_texts
from rlsys.tokenization.model_folder import check_model
from rlsys.tokenization.prompts import PromptRenderer
from rlsys.tokenization.tokenizer import eos_ids, load_tokenizer
from rlsys.types import (
    Completion,
    Environment,
    Episode,
    Group,
    GroupReport,
    Problem,
    RevisionRecord,
    RevisionTimes,
    Sample,
    Tokens,
)

ORIGINAL_SPLIT = 0
REVISION_SPLIT = 1
"""Split of a revision; that of the original is 0. The split is part of the seed of a request, so a
revision does not repeat the random numbers of its original."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reviser:
    """Settings of the revision of thoughts."""

    detector: Detector
    strength: Strength
    answer_tokens: int


class _Revisions(NamedTuple):
    """The revisions of the thoughts of a group."""

    detections: list[Detection]
    branches: list[AnswerBranch]
    """One branch for each revised thought."""
    answers: list[list[GradedAnswer]]
    detected: float
    """Time at which the detection ended, in seconds of the monotonic clock."""
    ended: float
    """Time at which the last revised answer was graded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionEnvironment(EnvironmentClass):
    """Rolls out groups of originals and their revisions."""

    Config: ClassVar[type[EnvironmentConfig]] = ReflectionEpisodes

    originals: AnytimeEnvironment
    """One budget, one answer, and reflections counted."""
    reviser: Reviser | None
    """None rolls out originals only."""
    free: bool = False
    """True forces nothing between a thought and its answer; see ReflectionEpisodes.originals."""

    @classmethod
    def inputs(cls, context: InputContext) -> Inputs:
        """Load the problems and check the reflection model."""
        settings = context.settings(ReflectionEpisodes)
        # A sequence must have room for the longer of the two kinds of answers.
        answer = max(settings.answer_tokens, settings.revision_tokens)
        length = None if settings.revision is None else _check_model(settings.revision)
        inputs = problem_inputs(context, tokens_after_prompt(context, answer_tokens=answer))
        return replace(inputs, reflection_length=length)

    @classmethod
    def create(cls, context: RolloutContext) -> Environment[Problem]:
        """Return an environment of originals and revisions; in an evaluation, of originals only.

        An evaluation measures the policy alone: the reflection model does not take part in it.
        """
        if not context.training:
            return AnytimeEnvironment.evaluation(context)
        settings = context.settings(ReflectionEpisodes)
        originals = AnytimeEnvironment.thoughts(context, (settings.budget,), 1, counted=True)
        return cls(
            originals=originals,
            reviser=_reviser(context, settings),
            free=settings.originals == "free",
        )

    async def rollout(self, index: int, task: Problem) -> Group:
        """Sample the thoughts, then the original answers and the revisions at the same time."""
        originals, started = self.originals, time.monotonic()
        prompt = originals.renderer.render(task)
        thoughts = await originals.sample_thoughts(index, prompt)
        branches = self._branches(thoughts)
        answering = (
            self._rests(index, task, prompt, thoughts)
            if self.free
            else originals.sample_answers(index, task, prompt, thoughts, branches)
        )
        if self.reviser is None:
            return originals.group(index, task, prompt, thoughts, branches, await answering)

        async def timed() -> tuple[list[list[GradedAnswer]], float]:
            return await answering, time.monotonic()

        thought_end = time.monotonic()
        # Detection runs while the policy answers the originals. The extra time of the revisions is
        # therefore only what remains after the original answers are done.
        (answers, answered), revised = await asyncio.gather(
            timed(), self._revise(self.reviser, index, task, prompt, thoughts)
        )
        group = originals.group(
            index, task, prompt, thoughts, branches + revised.branches, answers + revised.answers
        )
        ended = max(answered, revised.ended)
        return replace(
            group,
            episodes=_recorded(group.episodes, revised, len(prompt)),
            times=RevisionTimes(
                total_s=ended - started,
                detection_s=revised.detected - thought_end,
                extra_s=ended - answered,
            ),
        )

    def report(self, group: Group, samples: Sequence[Sample]) -> GroupReport:
        """Report the metrics of originals and revisions."""
        return report_revisions(group, self.originals.sampler, samples)

    def _branches(self, thoughts: Sequence[Completion]) -> list[AnswerBranch]:
        """Return the branch of every original's answer."""
        originals = self.originals
        if not self.free:
            return [b for g, t in enumerate(thoughts) for b in originals.branches(g, t)]
        nothing = originals.sampler.forced(truncated=False)[:0]
        return [
            AnswerBranch(g, ORIGINAL_SPLIT, len(t.token_ids), 1, nothing, originals.budgets[-1])
            for g, t in enumerate(thoughts)
        ]

    async def _rests(
        self, index: int, problem: Problem, prompt: Tokens, thoughts: Sequence[Completion]
    ) -> list[list[GradedAnswer]]:
        """Return what the policy wrote after every thought, as a branch of one answer."""
        originals = self.originals
        rests = await originals.sampler.sample_rests(
            [
                RestRequest(
                    prompt=prompt,
                    thought=thought,
                    gold=problem.answer,
                    max_tokens=originals.budgets[-1],
                    seed=derive_seed(originals.seed, index, "answer", number, ORIGINAL_SPLIT),
                )
                for number, thought in enumerate(thoughts)
            ]
        )
        return [[rest] for rest in rests]

    async def _revise(
        self,
        reviser: Reviser,
        index: int,
        problem: Problem,
        prompt: Tokens,
        thoughts: Sequence[Completion],
    ) -> _Revisions:
        sampler = self.originals.sampler
        # Without the stop token: it is not text of the thought, and a cut must come before it.
        sampled = [SampledThought(problem.text, sampler.reasoning(t)) for t in thoughts]
        detections = await reviser.detector.detect(sampled)
        detected = time.monotonic()
        forced = sampler.forced(truncated=True)
        # No branch for a thought whose detection failed: its original then stands for both rows.
        branches = [
            AnswerBranch(number, REVISION_SPLIT, kept, 1, forced, reviser.answer_tokens)
            for number, detection in enumerate(detections)
            if (kept := detection.kept_tokens(reviser.strength)) is not None
        ]
        answers = await self.originals.sample_answers(index, problem, prompt, thoughts, branches)
        return _Revisions(detections, branches, answers, detected, time.monotonic())


def _check_model(revision: RevisionConfig) -> int:
    """Return the longest sequence of the reflection model, after checking folder and tokenizer."""
    key = "environment.revision"
    limit = check_model(
        revision.model,
        on_cpu=not revision.generation.gpus_per_engine,
        key=f"{key}.model",
        engines=f"{key}.generation",
    )
    tokenizer = load_tokenizer(revision.model.path, f"{key}.model.path")
    layout = layout_named(revision.detector.layout)
    # Called for their errors only, so that they are reported before Ray starts.
    PromptRenderer(tokenizer, layout.prompt)
    check_labels(tokenizer, layout)
    eos_ids(tokenizer)
    return limit


def _reviser(context: RolloutContext, settings: ReflectionEpisodes) -> Reviser | None:
    revision, model = settings.revision, context.reflection_model
    if revision is None:
        return None
    assert model is not None, "a run with revisions starts the reflection model's engines"
    detector = ReflectionDetector(
        model.generator,
        load_tokenizer(revision.model.path),
        revision.detector,
        max_length=model.max_length,
        policy_texts=lambda ids: token_texts(context.tokenizer, ids.tolist()),
        # The other strengths need the labels of all chunks.
        until_first=revision.strength == "first",
    )
    return Reviser(
        detector=detector, strength=revision.strength, answer_tokens=settings.revision_tokens
    )


def _recorded(
    episodes: Sequence[Episode], revised: _Revisions, prompt_tokens: int
) -> tuple[Episode, ...]:
    """Return the episodes with a record of the detection and revision of their thoughts."""
    cached = {
        branch.episode: _cached_share(answer.completion, prompt_tokens + branch.cut)
        for branch, (answer,) in zip(revised.branches, revised.answers, strict=True)
    }
    return tuple(
        replace(episode, revision=_record(detection, cached.get(number)))
        for number, (episode, detection) in enumerate(
            zip(episodes, revised.detections, strict=True)
        )
    )


def _record(detection: Detection, cached_share: float | None) -> RevisionRecord:
    reading = detection.reading
    return RevisionRecord(
        outcome=detection.outcome,
        missing_labels=0 if reading is None else reading.missing,
        extra_labels=0 if reading is None else reading.extra,
        cached_share=cached_share,
    )


def _cached_share(answer: Completion, shared: int) -> float:
    """Return the share of `shared` tokens that the prefix cache of the engine held.

    `shared` counts the tokens of the prompt and of the kept thought. The cache stores whole blocks
    only, so only whole blocks are counted. The share is 1 if there is no whole block.
    """
    whole = shared // answer.cache_block * answer.cache_block
    return min(answer.cached_tokens / whole, 1.0) if whole else 1.0
