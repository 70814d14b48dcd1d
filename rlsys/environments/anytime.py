"""Anytime episodes: one thought, cut at every budget, answers at every cut (arXiv 2505.13438).

prompt ── thought, sampled once ──────────────────┐
               │ cut at b1        │ cut at b2      │ end of the thought, for all larger budgets
             answers            answers          answers

The thought is sampled once, up to the largest budget. The policy does not know the budgets, so the
thought under a smaller budget would be the beginning of the same thought. Between budgets that are
far apart it is sampled part by part, and the answers at a budget are sampled beside the rest of the
thought (rlsys.environments.thought_parts).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import ClassVar, Literal, Self

import numpy as np

from rlsys.algorithms.brpo import truncation_plan
from rlsys.algorithms.tree_samples import THOUGHT
from rlsys.config import AnytimeConfig, BrpoConfig, EnvironmentConfig, ThoughtSection
from rlsys.environments.anytime_report import report_anytime, report_thoughts
from rlsys.environments.base import (
    EnvironmentClass,
    InputContext,
    Inputs,
    RolloutContext,
    problem_inputs,
)
from rlsys.environments.seeds import derive_seed
from rlsys.environments.thought_parts import part_ends, sample_in_parts
from rlsys.environments.thought_setup import (
    CountReflections,
    reflection_counter,
    thought_sampler,
    tokens_after_prompt,
)
from rlsys.environments.thoughts import (
    AnswerBranch,
    AnswerRequest,
    GradedAnswer,
    ThoughtRequest,
    ThoughtSampler,
)
from rlsys.tokenization.prompts import PromptRenderer
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

PROMPT = 0
"""Index of the prompt in the segments of an episode."""


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
    """Seed of the run; the seed of every request is derived from it."""
    count_reflections: CountReflections | None = None
    """Counts the reflections of the thought before every answer; None: they are not counted."""
    evaluates: bool = False
    """True adds the metrics of an evaluation: accuracy of cut responses, and by difficulty."""
    truncation: Literal["close", "zero", "mask"] = "close"
    """What becomes of a thought that has not ended at the largest budget; see AnytimeConfig."""
    part_ends: tuple[int, ...] = ()
    """Budgets at which a thought is interrupted, the largest included; empty: it is not."""

    @classmethod
    def inputs(cls, context: InputContext) -> Inputs:
        """Load the problems whose prompt leaves room for the largest budget and one answer."""
        return problem_inputs(context, tokens_after_prompt(context))

    @classmethod
    def create(cls, context: RolloutContext) -> Self:
        """Cut at environment.budgets in training, at evaluation.budgets in an evaluation."""
        if not context.training:
            return cls.evaluation(context)
        settings, algorithm = context.settings(AnytimeConfig), context.config.algorithm
        shaped = isinstance(algorithm, BrpoConfig) and algorithm.shaping is not None
        # Counting reflections decodes every thought, so training does it only if a reward needs it.
        environment = cls.thoughts(context, settings.budgets, settings.answers, counted=shaped)
        return replace(environment, truncation=settings.truncation)

    @classmethod
    def evaluation(cls, context: RolloutContext) -> Self:
        """Return the environment of evaluation groups, for every environment with thoughts.

        Runs of different methods are comparable only if all are evaluated in the same way.
        """
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
        """Return an environment with `answers` answers at every budget.

        `counted` True counts the reflections of the thoughts.
        """
        settings = context.settings(ThoughtSection)
        sampler = thought_sampler(context, settings)
        # Without the prefix cache every part would compute all tokens before it again.
        in_parts = context.config.generation.prefix_caching and sampler.think.end.stop_text is None
        return cls(
            sampler=sampler,
            renderer=context.renderer,
            budgets=budgets,
            answers=answers,
            answer_tokens=settings.answer_tokens,
            group_size=context.group_size,
            seed=context.seed,
            count_reflections=reflection_counter(context, settings) if counted else None,
            evaluates=evaluates,
            part_ends=part_ends(budgets) if in_parts else (),
        )

    async def rollout(self, index: int, task: Problem) -> Group:
        """Sample the thoughts, and the answers of each as soon as its budgets are reached."""
        prompt = self.renderer.render(task)
        done = await asyncio.gather(
            *(self._answered(index, task, prompt, episode) for episode in range(self.group_size))
        )
        thoughts, branches, answers = zip(*done, strict=True)
        return self.group(index, task, prompt, thoughts, [*chain(*branches)], [*chain(*answers)])

    async def _answered(
        self, index: int, task: Problem, prompt: Tokens, episode: int
    ) -> tuple[Completion, list[AnswerBranch], list[list[GradedAnswer]]]:
        """Return one thought, its branches and their answers."""
        ends = self.part_ends or self.budgets[-1:]
        seed = self._thought_seed(index)
        whole = ThoughtRequest(prompt, 1, ends[-1], seed + episode, affinity=seed)
        branches: list[AnswerBranch] = []
        answering: list[asyncio.Task[list[list[GradedAnswer]]]] = []
        try:
            async for thought in sample_in_parts(self.sampler, whole, ends):
                length = len(thought.token_ids)
                ended = thought.stopped or length == ends[-1]
                # The answers at a budget are the same, whatever the thought goes on with.
                reached = self.budgets if ended else [b for b in self.budgets if b <= length]
                new = self.branches(episode, thought, reached)[len(branches) :]
                branches += new
                answers = self.sample_answers(index, task, prompt, {episode: thought}, new)
                answering.append(asyncio.create_task(answers))
            found = await asyncio.gather(*answering)
        finally:  # a part that failed leaves answers that nobody waits for
            for request in answering:
                request.cancel()
        return thought, branches, [*chain(*found)]

    def report(self, group: Group, samples: Sequence[Sample]) -> GroupReport:
        """Report accuracy per budget and the lengths of thoughts."""
        return (report_thoughts if self.evaluates else report_anytime)(group, self, samples)

    async def sample_thoughts(self, index: int, prompt: Tokens) -> list[Completion]:
        """Sample the group's thoughts, each up to the largest budget; wait for the longest."""
        seed = self._thought_seed(index)
        request = ThoughtRequest(prompt, self.group_size, self.budgets[-1], seed)
        (thoughts,) = await self.sampler.sample_thoughts([request])
        return thoughts

    def _thought_seed(self, index: int) -> int:
        # The seed depends on the run and the group index only. A group that is rolled out again
        # after a restart gets the same seeds, on whatever engine it runs.
        return derive_seed(self.seed, index, "thought")

    def branches(
        self, episode: int, thought: Completion, budgets: Sequence[int] | None = None
    ) -> list[AnswerBranch]:
        """Return the branches at the distinct cuts of a thought.

        None for a thought that has not ended, unless `truncation` is `close`. `budgets` None are
        those of the environment.
        """
        length, closed = len(thought.token_ids), self.sampler.is_closed(thought)
        plan = truncation_plan(length, closed, budgets or self.budgets, self.answers)
        return [
            AnswerBranch(
                episode,
                split,
                self.sampler.kept_tokens(thought, cut),
                count,
                self.sampler.forced(truncated=truncated),
                self.answer_tokens,
            )
            for cut, count, split, truncated in plan
            # With a single budget, which the other rules require, only unfinished thoughts are cut.
            if self.truncation == "close" or not truncated
        ]

    async def sample_answers(
        self,
        index: int,
        problem: Problem,
        prompt: Tokens,
        thoughts: Sequence[Completion] | Mapping[int, Completion],
        branches: Sequence[AnswerBranch],
    ) -> list[list[GradedAnswer]]:
        """Sample and grade the answers of every branch.

        They run on the engine that sampled the thought, because its prefix cache holds the prompt
        and the thought.
        """
        return await self.sampler.sample_answers(
            [
                AnswerRequest(
                    prompt=prompt,
                    kept=thoughts[b.episode].token_ids[: b.cut],
                    forced=b.forced,
                    gold=problem.answer,
                    n=b.answers,
                    max_tokens=b.answer_tokens,
                    # Episode and split are part of the seed, so that the answers of different
                    # branches are independent samples.
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
        """Return the group: a tree for every thought, with its answers in the order of branches."""
        episodes = []
        for number, thought in enumerate(thoughts):
            answered = [
                pair for pair in zip(branches, answers, strict=True) if pair[0].episode == number
            ]
            episode = self._episode(prompt, thought, answered)
            episodes.append(episode if answered else self._unfinished(episode, thought))
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
        answer_segments: list[int] = []
        splits: list[int] = []
        verdicts: list[Verdict] = []
        records: list[ThoughtRecord] = []
        for branch, answers in answered:
            parent, cut = THOUGHT, branch.cut
            if len(branch.forced):
                segments.append(
                    Segment(parent=parent, cut=cut, kind=Kind.FORCED, token_ids=branch.forced)
                )
                # Forced text is a segment without log-probs and gets no advantage: the policy did
                # not choose it. All answers of a branch share the segment, so it is packed once.
                parent, cut = len(segments) - 1, len(branch.forced)
            for answer in answers:
                answer_segments.append(len(segments))
                segments.append(
                    Segment.sampled(answer.completion, parent=parent, cut=cut, kind=Kind.ANSWER)
                )
                splits.append(branch.split)
                verdicts.append(answer.verdict)
            if self.count_reflections is not None:
                # Without the end of thought, so that the count per token has the same
                # meaning for thoughts that are cut and thoughts that end themselves.
                kept = self.sampler.reasoning(thought)[: branch.cut]
                record = ThoughtRecord(len(kept), self.count_reflections(kept.tolist()))
                records += [record] * len(answers)
        return Episode(
            segments=tuple(segments),
            # INVALID scores 0 as WRONG does: an answer that breaks the grader must not be rewarded.
            scores=np.array([v is Verdict.RIGHT for v in verdicts], np.float32),
            answer_segments=np.array(answer_segments, np.int32),
            splits=np.array(splits, np.int32),
            verdicts=np.array(verdicts, np.int8),
            thoughts=tuple(records),
        )

    def _unfinished(self, episode: Episode, thought: Completion) -> Episode:
        """Return the episode of a thought without answers: it is wrong, or its tokens are masked.

        The thought itself stands for the answers.
        """
        records: tuple[ThoughtRecord, ...] = ()
        if self.count_reflections is not None:
            kept = self.sampler.reasoning(thought).tolist()
            records = (ThoughtRecord(len(kept), self.count_reflections(kept)),) * self.answers
        return replace(
            episode,
            scores=np.zeros(self.answers, np.float32),
            answer_segments=np.full(self.answers, THOUGHT, np.int32),
            splits=np.zeros(self.answers, np.int32),
            verdicts=np.full(self.answers, Verdict.WRONG, np.int8),
            thoughts=records,
            masked=self.truncation == "mask",
        )
