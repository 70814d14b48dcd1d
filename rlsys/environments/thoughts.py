"""Sampling a thought, and sampling graded answers from any place of it.

Every environment with thoughts, and the labelling of thoughts for a reflection model, goes through
this sampler, so that a reward and a label can never disagree on what an answer is worth.

    prompt + thought[:kept] + forced tokens -> answer -> verdict

The kept thought is the sampled ids themselves, never re-tokenised text. The forced tokens end the
thought where it is cut and open the answer; they are never trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rlsys.tokenization.think import ThinkTokens
from rlsys.types import (
    Completion,
    Decode,
    GenerationRequest,
    Generator,
    Grader,
    GradingRequest,
    Tokens,
    Verdict,
)


class ThoughtRequest(NamedTuple):
    """Thoughts wanted after one prompt."""

    prompt: Tokens
    n: int
    max_tokens: int
    seed: int


class AnswerRequest(NamedTuple):
    """Answers wanted from one place of one thought."""

    prompt: Tokens
    kept: Tokens
    """The beginning of the thought, as it was sampled; with the end of thought if it is kept."""
    forced: Tokens
    """What stands between the kept thought and the answer; see `ThoughtSampler.forced`."""
    gold: str
    n: int
    max_tokens: int
    seed: int
    engine: int | None
    """The engine that sampled the thought and still has it in its prefix cache."""


class GradedAnswer(NamedTuple):
    """One answer and its verdict."""

    completion: Completion
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class ThoughtSampler:
    """Samples thoughts and graded answers through a generator and a grader."""

    think: ThinkTokens
    decode: Decode
    """Token ids to text, special tokens dropped."""
    temperature: float
    generator: Generator
    grader: Grader

    async def sample_thoughts(self, requests: Sequence[ThoughtRequest]) -> list[list[Completion]]:
        """Return the thoughts of every request, in order.

        A thought ends with the end of thought, with the end of the turn, or at `max_tokens`.
        """
        return await self.generator.generate(
            [
                GenerationRequest(
                    token_ids=request.prompt,
                    n=request.n,
                    max_tokens=request.max_tokens,
                    stop_token_ids=(self.think.think_end_id, *self.think.eos_ids),
                    temperature=self.temperature,
                    seed=request.seed,
                )
                for request in requests
            ]
        )

    async def sample_answers(self, requests: Sequence[AnswerRequest]) -> list[list[GradedAnswer]]:
        """Return the graded answers of every request, in order."""
        completions = await self.generator.generate(
            [
                GenerationRequest(
                    token_ids=np.concatenate([request.prompt, request.kept, request.forced]).astype(
                        np.int32
                    ),
                    n=request.n,
                    max_tokens=request.max_tokens,
                    stop_token_ids=self.think.eos_ids,
                    temperature=self.temperature,
                    seed=request.seed,
                    engine=request.engine,
                )
                for request in requests
            ]
        )
        verdicts = await self._grade(requests, completions)
        return [list(map(GradedAnswer, *pair)) for pair in zip(completions, verdicts, strict=True)]

    def is_closed(self, thought: Completion) -> bool:
        """True if the policy ended the thought itself with the end-of-thought token."""
        return thought.stopped and int(thought.token_ids[-1]) == self.think.think_end_id

    def reasoning(self, thought: Completion) -> Tokens:
        """The thought's tokens without the one that ended it."""
        return thought.token_ids[:-1] if thought.stopped else thought.token_ids

    def forced(self, *, truncated: bool) -> Tokens:
        """Ids forced before an answer; a thought that ended itself needs only the header."""
        header = self.think.header_ids
        if not truncated:
            return header
        return np.concatenate([self.think.closing_ids, [self.think.think_end_id], header]).astype(
            np.int32
        )

    async def _grade(
        self, requests: Sequence[AnswerRequest], completions: Sequence[Sequence[Completion]]
    ) -> list[list[Verdict]]:
        """Verdict of every answer; one that breaks the thought format is WRONG unread."""
        graded: list[GradingRequest] = []
        places: list[tuple[int, int]] = []
        verdicts = [[Verdict.WRONG] * len(answers) for answers in completions]
        for row, (request, answers) in enumerate(zip(requests, completions, strict=True)):
            for column, answer in enumerate(answers):
                if self._well_formed(request, answer.token_ids):
                    text = self.decode([*request.forced.tolist(), *answer.token_ids.tolist()])
                    graded.append(GradingRequest(text, request.gold))
                    places.append((row, column))
        for (row, column), verdict in zip(places, await self.grader.grade(graded), strict=True):
            verdicts[row][column] = verdict
        return verdicts

    def _well_formed(self, request: AnswerRequest, answer: Tokens) -> bool:
        """Exactly one end of thought in all, and no end of turn inside the thought."""
        kept, end = request.kept, self.think.think_end_id
        ends = [np.count_nonzero(ids == end) for ids in (request.forced, answer)]
        self_closed = len(kept) > 0 and int(kept[-1]) == end
        return self_closed + sum(ends) == 1 and not np.isin(kept, self.think.eos_ids).any()
