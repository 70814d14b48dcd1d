"""Anytime episodes: one thought, cut at every budget, answers at every cut (arXiv 2505.13438).

prompt ── thought, sampled once ──────────────────┐
               │ cut at b1        │ cut at b2      │ its own end, shared by all larger budgets
             answers            answers          answers
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Self

import numpy as np

from rlsys.algorithms.brpo import truncation_plan
from rlsys.algorithms.reflection import count_reflections
from rlsys.config import AnytimeConfig, BrpoConfig, EnvironmentConfig, ThoughtSection
from rlsys.environments.anytime_report import THOUGHT, report_anytime, report_thoughts
from rlsys.environments.base import (
    EnvironmentClass,
    InputContext,
    Inputs,
    RolloutContext,
    problem_inputs,
)
from rlsys.environments.seeds import derive_seed
from rlsys.environments.thoughts import (
    AnswerRequest,
    GradedAnswer,
    ThoughtRequest,
    ThoughtSampler,
)
from rlsys.tokenization.prompts import PromptRenderer
from rlsys.tokenization.think import ThinkTokens
from rlsys.types import (
    NO_PARENT,
    Completion,
    Episode,
    Group,
    GroupReport,
    Kind,
    Problem,
    Sample,
    Segment,
    ThoughtRecord,
    Tokens,
    Verdict,
)

CountReflections = Callable[[Sequence[int]], int]
"""Reflections in the tokens of a thought."""

PROMPT = 0
"""Index of the prompt in the segments of an episode."""


class AnswerBranch(NamedTuple):
    """The answers wanted at one distinct cut of one thought."""

    episode: int
    split: int
    """Number of the distinct cut; see brpo.truncation_plan."""
    cut: int
    """Thought tokens kept."""
    answers: int
    forced: Tokens
    answer_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AnytimeEnvironment(EnvironmentClass):
    """Rolls out groups of anytime episodes."""

    Config: ClassVar[type[EnvironmentConfig]] = AnytimeConfig

    sampler: ThoughtSampler
    renderer: PromptRenderer
    budgets: tuple[int, ...]
    answers: int
    """Answers per budget (A)."""
    answer_tokens: int
    group_size: int
    seed: int
    """Seed of the run; requests derive theirs from it."""
    count_reflections: CountReflections | None = None
    """Counts the reflections of the thought before every answer; None leaves them uncounted."""
    evaluates: bool = False
    """True adds what an evaluation reports: accuracy under a cut afterwards, and by difficulty."""

    @classmethod
    def inputs(cls, context: InputContext) -> Inputs:
        """Load the problems, with room for the largest budget and one answer behind it."""
        return problem_inputs(context, tokens_after_prompt(context))

    @classmethod
    def create(cls, context: RolloutContext) -> Self:
        """Training cuts at environment.budgets, the evaluation at its own."""
        if not context.training:
            return cls.evaluation(context)
        settings, algorithm = context.settings(AnytimeConfig), context.config.algorithm
        shaped = isinstance(algorithm, BrpoConfig) and algorithm.shaping is not None
        return cls.thoughts(context, settings.budgets, settings.answers, counted=shaped)

    @classmethod
    def evaluation(cls, context: RolloutContext) -> Self:
        """Thoughts under the budgets of the evaluation, whatever kind of thought is trained."""
        config = context.config
        return cls.thoughts(
            context,
            config.evaluation_budgets,
            config.evaluation.answers,
            counted=True,
            evaluates=True,
        )

    @classmethod
    def thoughts(
        cls,
        context: RolloutContext,
        budgets: tuple[int, ...],
        answers: int,
        *,
        counted: bool,
        evaluates: bool = False,
    ) -> Self:
        """Thoughts with `answers` answers at every budget; `counted` counts their reflections."""
        settings = context.settings(ThoughtSection)
        return cls(
            sampler=thought_sampler(context, settings),
            renderer=context.renderer,
            budgets=budgets,
            answers=answers,
            answer_tokens=settings.answer_tokens,
            group_size=context.group_size,
            seed=context.seed,
            count_reflections=reflection_counter(context, settings) if counted else None,
            evaluates=evaluates,
        )

    async def rollout(self, index: int, task: Problem) -> Group:
        """Sample the group's thoughts, then every answer of every cut."""
        prompt = self.renderer.render(task)
        thoughts = await self.sample_thoughts(index, prompt)
        branches = [b for g, t in enumerate(thoughts) for b in self.branches(g, t)]
        answers = await self.sample_answers(index, task, prompt, thoughts, branches)
        return self.group(index, task, prompt, thoughts, branches, answers)

    def report(self, group: Group, samples: Sequence[Sample]) -> GroupReport:
        """Report accuracy per budget and the lengths of thoughts."""
        return (report_thoughts if self.evaluates else report_anytime)(group, self, samples)

    async def sample_thoughts(self, index: int, prompt: Tokens) -> list[Completion]:
        """Sample the group's thoughts, each up to the largest budget."""
        seed = derive_seed(self.seed, index, "thought")
        request = ThoughtRequest(prompt, self.group_size, self.budgets[-1], seed)
        (thoughts,) = await self.sampler.sample_thoughts([request])
        return thoughts

    def branches(self, episode: int, thought: Completion) -> list[AnswerBranch]:
        """The distinct cuts of a thought at the budgets."""
        length, closed = len(thought.token_ids), self.sampler.is_closed(thought)
        plan = truncation_plan(length, closed, self.budgets, self.answers)
        return [
            AnswerBranch(
                episode,
                split,
                cut,
                count,
                self.sampler.forced(truncated=truncated),
                self.answer_tokens,
            )
            for cut, count, split, truncated in plan
        ]

    async def sample_answers(
        self,
        index: int,
        problem: Problem,
        prompt: Tokens,
        thoughts: Sequence[Completion],
        branches: Sequence[AnswerBranch],
    ) -> list[list[GradedAnswer]]:
        """Sample and grade the answers of every branch, on the engine that holds its thought."""
        return await self.sampler.sample_answers(
            [
                AnswerRequest(
                    prompt=prompt,
                    kept=thoughts[b.episode].token_ids[: b.cut],
                    forced=b.forced,
                    gold=problem.answer,
                    n=b.answers,
                    max_tokens=b.answer_tokens,
                    seed=derive_seed(self.seed, index, "answer", b.episode, b.split),
                    engine=thoughts[b.episode].engine,
                )
                for b in branches
            ]
        )

    def group(
        self,
        index: int,
        problem: Problem,
        prompt: Tokens,
        thoughts: Sequence[Completion],
        branches: Sequence[AnswerBranch],
        answers: Sequence[Sequence[GradedAnswer]],
    ) -> Group:
        """The trees of the thoughts, with the answers of every branch in the order of branches."""
        episodes = []
        for number, thought in enumerate(thoughts):
            own = [
                pair for pair in zip(branches, answers, strict=True) if pair[0].episode == number
            ]
            episodes.append(self._episode(prompt, thought, own))
        return Group(index=index, task=problem, episodes=tuple(episodes))

    def _episode(
        self,
        prompt: Tokens,
        thought: Completion,
        answered: Sequence[tuple[AnswerBranch, Sequence[GradedAnswer]]],
    ) -> Episode:
        segments = [
            Segment(parent=NO_PARENT, cut=0, kind=Kind.PROMPT, token_ids=prompt),
            Segment.sampled(thought, parent=PROMPT, cut=len(prompt), kind=Kind.THOUGHT),
        ]
        places: list[int] = []
        splits: list[int] = []
        verdicts: list[Verdict] = []
        records: list[ThoughtRecord] = []
        for branch, answers in answered:
            parent, cut = THOUGHT, branch.cut
            if len(branch.forced):
                segments.append(
                    Segment(parent=parent, cut=cut, kind=Kind.FORCED, token_ids=branch.forced)
                )
                # The answers of a branch share the forced segment: it is packed once.
                parent, cut = len(segments) - 1, len(branch.forced)
            for answer in answers:
                places.append(len(segments))
                segments.append(
                    Segment.sampled(answer.completion, parent=parent, cut=cut, kind=Kind.ANSWER)
                )
                splits.append(branch.split)
                verdicts.append(answer.verdict)
            if self.count_reflections is not None:
                kept = self.sampler.reasoning(thought)[: branch.cut]
                record = ThoughtRecord(len(kept), self.count_reflections(kept.tolist()))
                records += [record] * len(answers)
        return Episode(
            segments=tuple(segments),
            scores=np.array([v is Verdict.RIGHT for v in verdicts], np.float32),
            answer_segments=np.array(places, np.int32),
            splits=np.array(splits, np.int32),
            verdicts=np.array(verdicts, np.int8),
            thoughts=tuple(records),
        )


def tokens_after_prompt(context: InputContext, *, answer_tokens: int | None = None) -> int:
    """Thought, closing, end of thought, header and one answer at their longest."""
    settings = context.settings(ThoughtSection)
    think = ThinkTokens.resolve(context.tokenizer, settings)
    longest = max(settings.longest_thought, context.config.evaluation_budgets[-1])
    forced = len(think.closing_ids) + 1 + len(think.header_ids)
    return longest + forced + (answer_tokens or settings.answer_tokens)


def thought_sampler(context: RolloutContext, settings: ThoughtSection) -> ThoughtSampler:
    """The sampler of an environment with thoughts."""
    return ThoughtSampler(
        think=ThinkTokens.resolve(context.tokenizer, settings),
        decode=context.decode,
        temperature=context.temperature,
        generator=context.generator,
        grader=context.grader,
    )


def reflection_counter(context: RolloutContext, settings: ThoughtSection) -> CountReflections:
    """Count reflections in thought tokens as environment.reflections says."""
    counting = settings.reflections

    def count(thought: Sequence[int]) -> int:
        text = context.decode(thought)
        return count_reflections(text, counting.mode, words=counting.words, gap=counting.gap)

    return count
