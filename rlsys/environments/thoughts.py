"""Sample thoughts, and sample graded answers from any position in a thought.

All environments with thoughts use this sampler. The labelling of thoughts for a reflection model
uses it too, so a reward and a label always judge an answer in the same way.

    prompt + thought[:kept] + forced tokens -> answer -> verdict

The kept thought consists of the sampled ids, never of text that is tokenised again: other tokens
would not be in the prefix cache, and their log-probs would not be those that were sampled. The
forced tokens end the thought at the cut and open the answer. The policy did not sample them, so
they are never trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
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
    """A request for `n` thoughts after one prompt."""

    prompt: Tokens
    n: int
    max_tokens: int
    seed: int
    affinity: int | None = None
    """See GenerationRequest."""
    engine: int | None = None
    """The engine that sampled the last tokens of `prompt`; None for any engine."""


class AnswerRequest(NamedTuple):
    """A request for `n` answers from one position in one thought."""

    prompt: Tokens
    kept: Tokens
    """The first tokens of the thought, as sampled; with the end of thought if it is kept."""
    forced: Tokens
    """Tokens between the kept thought and the answer; see `ThoughtSampler.forced`."""
    gold: str
    n: int
    max_tokens: int
    seed: int
    engine: int | None
    """The engine that sampled the thought, whose prefix cache holds it; None for any engine."""


class RestRequest(NamedTuple):
    """A request for what the policy writes after a thought without any forced text."""

    prompt: Tokens
    thought: Completion
    gold: str
    max_tokens: int
    """Most tokens of thought and rest together."""
    seed: int


class AnswerBranch(NamedTuple):
    """The answers to sample at one distinct cut of one thought."""

    episode: int
    """Index of the thought in its group."""
    split: int
    """Number of the distinct cut; see brpo.truncation_plan."""
    cut: int
    """Thought tokens kept."""
    answers: int
    """Number of answers to sample."""
    forced: Tokens
    """Tokens between the kept thought and the answer."""
    answer_tokens: int
    """Most sampled tokens of an answer."""


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
    top_p: float = 1.0
    """Share of the probability that is sampled from, see GenerationRequest; 1 in training."""
    top_k: int | None = None
    """How many tokens are sampled from; all in training."""

    async def sample_thoughts(self, requests: Sequence[ThoughtRequest]) -> list[list[Completion]]:
        """Return the thoughts of every request, in order.

        A thought ends with the end of thought, with an EOS token, or at `max_tokens`.
        """
        return await self.generator.generate(
            [
                GenerationRequest(
                    token_ids=request.prompt,
                    n=request.n,
                    max_tokens=request.max_tokens,
                    stop_token_ids=(*self.think.end.stop_token_ids, *self.think.eos_ids),
                    stop_text=self.think.end.stop_text,
                    temperature=self.temperature,
                    top_p=self.top_p,
                    top_k=self.top_k,
                    seed=request.seed,
                    engine=request.engine,
                    affinity=request.affinity,
                )
                for request in requests
            ]
        )

    async def sample_answers(self, requests: Sequence[AnswerRequest]) -> list[list[GradedAnswer]]:
        """Return the graded answers of every request, in order."""
        # The engine continues these exact ids: the cut thought is a prefix of what it sampled, so
        # its prefix cache holds everything except the forced tokens.
        completions = await self.generator.generate(
            [
                GenerationRequest(
                    token_ids=np.concatenate([request.prompt, request.kept, request.forced]).astype(
                        np.int32
                    ),
                    n=request.n,
                    max_tokens=request.max_tokens,
                    # Not the end of thought: an answer with a second one is graded wrong.
                    stop_token_ids=self.think.eos_ids,
                    temperature=self.temperature,
                    top_p=self.top_p,
                    top_k=self.top_k,
                    seed=request.seed,
                    engine=request.engine,
                )
                for request in requests
            ]
        )
        verdicts = await self._grade(requests, completions)
        return [list(map(GradedAnswer, *pair)) for pair in zip(completions, verdicts, strict=True)]

    async def sample_rests(self, requests: Sequence[RestRequest]) -> list[GradedAnswer]:
        """Return the rest of every response and the verdict on the whole response as it stands.

        A thought that has not ended, or that ended the turn, has an empty rest. Rules of format do
        not apply: the last box decides, and it may be inside the thought.
        """
        # `sample_thoughts` stopped at the end of the thought. Going on from there samples the same
        # responses as not stopping at all.
        writing = [r for r in requests if len(self.ending(r.thought)) and self._room(r) > 0]
        completions = await self.generator.generate(
            [
                GenerationRequest(
                    token_ids=np.concatenate([r.prompt, r.thought.token_ids]).astype(np.int32),
                    n=1,
                    max_tokens=self._room(r),
                    stop_token_ids=self.think.eos_ids,
                    temperature=self.temperature,
                    top_p=self.top_p,
                    top_k=self.top_k,
                    seed=r.seed,
                    engine=r.thought.engine,
                )
                for r in writing
            ]
        )
        written = {id(r): rest for r, (rest,) in zip(writing, completions, strict=True)}
        rests = [written.get(id(r)) or _nothing_after(r.thought) for r in requests]
        graded = [
            GradingRequest(
                self.decode([*r.thought.token_ids.tolist(), *rest.token_ids.tolist()]), r.gold
            )
            for r, rest in zip(requests, rests, strict=True)
        ]
        return list(map(GradedAnswer, rests, await self.grader.grade(graded)))

    def _room(self, request: RestRequest) -> int:
        return request.max_tokens - len(request.thought.token_ids)

    def is_closed(self, thought: Completion) -> bool:
        """True if the policy ended the thought itself; without a text for that, by EOS."""
        return self.think.closes(thought.token_ids)

    def reasoning(self, thought: Completion) -> Tokens:
        """Return the tokens of the thought without those that end it: end of thought or EOS."""
        ending = len(self.ending(thought)) or int(thought.stopped)
        return thought.token_ids[: len(thought.token_ids) - ending]

    def ending(self, thought: Completion) -> Tokens:
        """Return the sampled tokens that hold the end of the thought; none if it has no end."""
        ids = thought.token_ids
        return ids[len(ids) - self.think.end.closing_tokens(ids) :]

    def kept_tokens(self, thought: Completion, cut: int) -> int:
        """Return how many tokens of the thought stand before an answer at `cut`.

        This is `cut`, except where EOS is the only end that a thought can have. No text may follow
        EOS, so the answers leave it out. It stays in the thought and is trained: the policy chose
        to end the thought there.
        """
        if self.think.end.text is None and thought.stopped:
            return min(cut, len(thought.token_ids) - 1)
        return cut

    def forced(self, *, truncated: bool) -> Tokens:
        """Return the ids forced before an answer.

        A thought that ended itself needs only the header, which every answer follows.
        """
        return self.think.cut_ids if truncated else self.think.header_ids

    async def _grade(
        self, requests: Sequence[AnswerRequest], completions: Sequence[Sequence[Completion]]
    ) -> list[list[Verdict]]:
        """Return the verdict of every answer. An answer that breaks the format is WRONG."""
        graded: list[GradingRequest] = []
        positions: list[tuple[int, int]] = []
        # WRONG without grading: an answer after a second end of thought could be right by accident,
        # and a reward for it would teach the policy to break the format.
        verdicts = [[Verdict.WRONG] * len(answers) for answers in completions]
        for row, (request, answers) in enumerate(zip(requests, completions, strict=True)):
            # Once for all answers of a request: this is most of the environment's own time.
            missing = self._missing_ends(request)
            forced = request.forced.tolist()
            for column, answer in enumerate(answers):
                # Together with the forced text: an end could begin in one and end in the other,
                # and the header may open the box that holds the answer.
                after = [*forced, *answer.token_ids.tolist()]
                if missing is not None and self.think.end.count(after) == missing:
                    graded.append(GradingRequest(self.decode(after), request.gold))
                    positions.append((row, column))
        # One call for all answers, so that the grading actors work on them in parallel.
        for (row, column), verdict in zip(positions, await self.grader.grade(graded), strict=True):
            verdicts[row][column] = verdict
        return verdicts

    def _missing_ends(self, request: AnswerRequest) -> int | None:
        """Return how many ends of thought must follow the kept thought, so that there is one.

        None if no answer can be well-formed, because there is an EOS inside the kept thought.
        """
        if not set(self.think.eos_ids).isdisjoint(request.kept.tolist()):
            return None
        if self.think.end.text is None:
            return 0
        # Only the last kept tokens can hold an end of thought, because sampling stops there.
        return 1 - (self.think.end.closing_tokens(request.kept) > 0)


def _nothing_after(thought: Completion) -> Completion:
    """Return a completion without tokens, by the policy that sampled the thought."""
    return replace(
        thought, token_ids=thought.token_ids[:0], logprobs=thought.logprobs[:0], candidates=None
    )
