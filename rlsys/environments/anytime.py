"""Anytime episodes: one thought, cut at every budget, answers at every cut (arXiv 2505.13438).

The cut prefix is the sampled ids themselves, never re-tokenised text. Where the thought is cut, the
end of thought is forced; every answer hangs off a forced header. Forced tokens are never trained.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rlsys.algorithms.brpo import truncation_plan
from rlsys.environments.seeds import derive_seed
from rlsys.tokenization.think import ThinkTokens
from rlsys.types import (
    NO_PARENT,
    Completion,
    Decode,
    Episode,
    GenerationRequest,
    Generator,
    Grader,
    GradingRequest,
    Group,
    Kind,
    Problem,
    Segment,
    Tokens,
    Verdict,
)

CountReflections = Callable[[Sequence[int]], int]
"""Reflections in the tokens of a thought."""

PROMPT, THOUGHT = 0, 1
"""Segment indices that every anytime episode has."""


class Fork(NamedTuple):
    """The answers wanted at one distinct cut of one thought."""

    episode: int
    split: int
    cut: int
    answers: int
    forced: Tokens
    answer_tokens: int


class Answer(NamedTuple):
    """One answer and what grading said of it."""

    completion: Completion
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class AnytimeEnvironment:
    """Grows groups of anytime episodes through a generator and a grader."""

    budgets: tuple[int, ...]
    answers: int
    """Answers per budget (A)."""
    answer_tokens: int
    group_size: int
    temperature: float
    seed: int
    """Seed of the run; requests derive theirs from it."""
    think: ThinkTokens
    decode: Decode
    """Token ids to text, special tokens dropped."""
    generator: Generator
    grader: Grader
    count_reflections: CountReflections | None = None
    """Tells of every answer how often the thought before it reflects; None tells nothing."""

    async def run_group(self, index: int, problem: Problem, prompt: Tokens) -> Group:
        """Grow the group's thoughts, then every answer of every cut, then grade them."""
        thoughts = await self.sample_thoughts(index, prompt)
        forks = [f for g, t in enumerate(thoughts) for f in self.forks(g, t)]
        answers = await self.sample_answers(index, problem, prompt, thoughts, forks)
        return self.group(index, problem, prompt, thoughts, forks, answers)

    def is_closed(self, thought: Completion) -> bool:
        """True if the policy ended the thought itself with the end-of-thought token."""
        return thought.stopped and int(thought.token_ids[-1]) == self.think.think_end_id

    def reasoning(self, thought: Completion) -> Tokens:
        """The thought's tokens without the one that ended it."""
        return thought.token_ids[:-1] if thought.stopped else thought.token_ids

    async def sample_thoughts(self, index: int, prompt: Tokens) -> list[Completion]:
        """Sample the group's thoughts."""
        request = GenerationRequest(
            token_ids=prompt,
            n=self.group_size,
            max_tokens=self.budgets[-1],
            stop_token_ids=(self.think.think_end_id, *self.think.eos_ids),
            temperature=self.temperature,
            seed=derive_seed(self.seed, index, "thought"),
        )
        (thoughts,) = await self.generator.generate([request])
        return thoughts

    def forks(self, episode: int, thought: Completion) -> list[Fork]:
        """The cuts of a thought at the budgets."""
        length, closed = len(thought.token_ids), self.is_closed(thought)
        plan = truncation_plan(length, closed, self.budgets, self.answers)
        return [
            Fork(episode, split, cut, count, self.forced(truncated), self.answer_tokens)
            for cut, count, split, truncated in plan
        ]

    def forced(self, truncated: bool) -> Tokens:
        """Ids inserted before an answer; a thought that closed itself needs only the header."""
        header = self.think.header_ids
        if not truncated:
            return header
        return np.concatenate([self.think.closing_ids, [self.think.think_end_id], header]).astype(
            np.int32
        )

    async def sample_answers(
        self,
        index: int,
        problem: Problem,
        prompt: Tokens,
        thoughts: Sequence[Completion],
        forks: Sequence[Fork],
    ) -> list[list[Answer]]:
        """Sample and grade the answers of every fork; the engine that holds a thought is asked."""
        requests = [
            GenerationRequest(
                token_ids=np.concatenate(
                    [prompt, thoughts[f.episode].token_ids[: f.cut], f.forced]
                ).astype(np.int32),
                n=f.answers,
                max_tokens=f.answer_tokens,
                stop_token_ids=self.think.eos_ids,
                temperature=self.temperature,
                seed=derive_seed(self.seed, index, "answer", f.episode, f.split),
                engine=thoughts[f.episode].engine,
            )
            for f in forks
        ]
        completions = await self.generator.generate(requests)
        verdicts = await self._grade(problem, thoughts, forks, completions)
        return [list(map(Answer, *pair)) for pair in zip(completions, verdicts, strict=True)]

    async def _grade(
        self,
        problem: Problem,
        thoughts: Sequence[Completion],
        forks: Sequence[Fork],
        completions: Sequence[Sequence[Completion]],
    ) -> list[list[Verdict]]:
        """Verdict of every answer; one that breaks the thought format is WRONG unread."""
        texts: list[GradingRequest] = []
        places: list[tuple[int, int]] = []
        verdicts = [[Verdict.WRONG] * f.answers for f in forks]
        for row, (fork, answers) in enumerate(zip(forks, completions, strict=True)):
            thought = thoughts[fork.episode].token_ids[: fork.cut]
            for column, answer in enumerate(answers):
                if self._well_formed(thought, fork.forced, answer.token_ids):
                    text = self.decode([*fork.forced.tolist(), *answer.token_ids.tolist()])
                    texts.append(GradingRequest(text, problem.answer))
                    places.append((row, column))
        for (row, column), verdict in zip(places, await self.grader.grade(texts), strict=True):
            verdicts[row][column] = verdict
        return verdicts

    def _well_formed(self, thought: Tokens, forced: Tokens, answer: Tokens) -> bool:
        """Exactly one end of thought in all, and no EOS inside the thought."""
        ends = [np.count_nonzero(ids == self.think.think_end_id) for ids in (forced, answer)]
        self_closed = len(thought) > 0 and int(thought[-1]) == self.think.think_end_id
        return self_closed + sum(ends) == 1 and not np.isin(thought, self.think.eos_ids).any()

    def group(
        self,
        index: int,
        problem: Problem,
        prompt: Tokens,
        thoughts: Sequence[Completion],
        forks: Sequence[Fork],
        answers: Sequence[Sequence[Answer]],
    ) -> Group:
        """The trees of the thoughts, their answers in the order of `forks`."""
        episodes = []
        for number, thought in enumerate(thoughts):
            own = [pair for pair in zip(forks, answers, strict=True) if pair[0].episode == number]
            episodes.append(self._episode(prompt, thought, own))
        return Group(index=index, problem=problem, episodes=tuple(episodes))

    def _episode(
        self, prompt: Tokens, thought: Completion, answered: Sequence[tuple[Fork, Sequence[Answer]]]
    ) -> Episode:
        segments = [
            Segment(parent=NO_PARENT, cut=0, kind=Kind.PROMPT, token_ids=prompt),
            _sampled(thought, parent=PROMPT, cut=len(prompt), kind=Kind.THOUGHT),
        ]
        places: list[int] = []
        splits: list[int] = []
        verdicts: list[Verdict] = []
        facts: list[dict[str, float | str]] = []
        for fork, answers in answered:
            parent, cut = THOUGHT, fork.cut
            if len(fork.forced):
                segments.append(
                    Segment(parent=parent, cut=cut, kind=Kind.FORCED, token_ids=fork.forced)
                )
                parent, cut = len(segments) - 1, len(fork.forced)
            for answer in answers:
                places.append(len(segments))
                segments.append(
                    _sampled(answer.completion, parent=parent, cut=cut, kind=Kind.ANSWER)
                )
                splits.append(fork.split)
                verdicts.append(answer.verdict)
            if self.count_reflections is not None:
                facts += [self._facts(thought, fork.cut)] * len(answers)
        return Episode(
            segments=tuple(segments),
            scores=np.array([v is Verdict.RIGHT for v in verdicts], np.float32),
            answer_segments=np.array(places, np.int32),
            splits=np.array(splits, np.int32),
            verdicts=np.array(verdicts, np.int8),
            facts=tuple(facts),
        )

    def _facts(self, thought: Completion, cut: int) -> dict[str, float | str]:
        """What the rewards beside accuracy need to know of the thought before a cut."""
        assert self.count_reflections is not None
        kept = self.reasoning(thought)[:cut]
        return {
            "reflections": self.count_reflections(kept.tolist()),
            "thought_tokens": len(kept),
        }


def _sampled(completion: Completion, *, parent: int, cut: int, kind: Kind) -> Segment:
    return Segment(
        parent=parent,
        cut=cut,
        kind=kind,
        token_ids=completion.token_ids,
        logprobs=completion.logprobs,
        versions=completion.versions,
    )
