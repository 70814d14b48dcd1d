"""Thoughts of the policy, and its answers from any position in a thought.

There are three such positions: the end of the thought, a cut (a revision), and the position where
the token limit stopped the thought. Answers are sampled in the same way from all three. Only the
forced text before the answer differs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from rlsys.environments.seeds import derive_seed
from rlsys.environments.thoughts import (
    AnswerRequest,
    GradedAnswer,
    ThoughtRequest,
    ThoughtSampler,
)
from rlsys.errors import DataError
from rlsys.reflection.labelling.journal import Journal, read_journal
from rlsys.tokenization.prompts import PromptRenderer
from rlsys.types import (
    Problem,
    Tokens,
    Verdict,
)

SAMPLED_AT_ONCE: Final = 256
"""Problems per batch. A killed process loses at most the thoughts of one batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Thought:
    """A sampled thought about a problem."""

    id: str
    """See `thought_id`."""
    problem: Problem
    token_ids: Tokens
    """The tokens of the policy, without those that end the thought."""
    closed: bool
    """True if the policy ended the thought; False if it reached the token limit."""
    end_ids: Tokens | None = None
    """The tokens with which the policy ended the thought, as sampled. None takes the tokenizer's:
    older files do not hold these tokens, because the end was a single known one."""

    def to_row(self) -> dict[str, object]:
        """Return the thought as a row of a JSON lines file."""
        return {
            "id": self.id,
            "problem_id": self.problem.id,
            "problem": self.problem.text,
            "answer": self.problem.answer,
            "thought_ids": self.token_ids.tolist(),
            "closed": self.closed,
            "end_ids": None if self.end_ids is None else self.end_ids.tolist(),
        }

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> Thought:
        """Return the thought of a row. A malformed row raises KeyError, TypeError or ValueError."""
        problem = Problem(id=row["problem_id"], text=row["problem"], answer=row["answer"])
        ids = np.array(row["thought_ids"], np.int32)
        end = row.get("end_ids")
        return cls(
            id=row["id"],
            problem=problem,
            token_ids=ids,
            closed=bool(row["closed"]),
            end_ids=None if end is None else np.array(end, np.int32),
        )


def read_thoughts(path: Path) -> Iterator[Thought]:
    """Yield the thoughts of a JSON lines file. Raises DataError for a malformed row."""
    for row in read_journal(path):
        try:
            yield Thought.from_row(row)
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"{path}, row {row['id']!r}: not a sampled thought ({error!r}); "
                "sample the thoughts again"
            ) from error


class AnswerFrom(NamedTuple):
    """An answer from one position in a thought."""

    token_ids: Tokens
    """All tokens after the kept thought: its end, the header, and the answer without EOS."""
    tokens: int
    """Tokens of the whole response: kept thought, forced tokens and answer, EOS included."""
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The policy whose thoughts are labelled. It uses the same sampler as training."""

    sampler: ThoughtSampler
    renderer: PromptRenderer
    thought_tokens: int
    """Most tokens of a thought."""
    answer_tokens: int
    """Most sampled tokens of an answer."""
    seed: int

    async def think_about(self, problems: Sequence[Problem], samples: int) -> list[Thought]:
        """Sample `samples` thoughts about each problem, in order."""
        requests = [
            ThoughtRequest(
                prompt=self.renderer.render(problem),
                n=samples,
                max_tokens=self.thought_tokens,
                seed=derive_seed(self.seed, problem.id, "thought"),
            )
            for problem in problems
        ]
        completions = await self.sampler.sample_thoughts(requests)
        return [
            Thought(
                id=thought_id(problem, sample),
                problem=problem,
                # Without what ended it, an EOS included. An EOS inside the response would make
                # every answer from the end of this thought wrong.
                token_ids=self.sampler.reasoning(completion),
                closed=self.sampler.is_closed(completion),
                end_ids=self.sampler.ending(completion),
            )
            for problem, thoughts in zip(problems, completions, strict=True)
            for sample, completion in enumerate(thoughts)
        ]

    async def answer(self, thoughts: Sequence[Thought], kept: Sequence[int]) -> list[AnswerFrom]:
        """Keep the first `kept` tokens of each thought, sample one answer after them, grade it."""
        requests = [self._request(t, k) for t, k in zip(thoughts, kept, strict=True)]
        answers = await self.sampler.sample_answers(requests)
        return [
            _answer_from(request, count, answer)
            for request, count, (answer,) in zip(requests, kept, answers, strict=True)
        ]

    def _request(self, thought: Thought, count: int) -> AnswerRequest:
        whole = thought.closed and count == len(thought.token_ids)
        kept = thought.token_ids[:count]
        if whole:  # the policy ended this thought, so its end is not forced
            end = self.sampler.think.end.token_ids if thought.end_ids is None else thought.end_ids
            kept = np.concatenate([kept, end])
        return AnswerRequest(
            prompt=self.renderer.render(thought.problem),
            kept=kept,
            forced=self.sampler.forced(truncated=not whole),
            gold=thought.problem.answer,
            n=1,
            max_tokens=self.answer_tokens,
            seed=derive_seed(self.seed, thought.id, "answer", count),
            # The thought comes from a file: no engine has it in its cache.
            engine=None,
        )


def _answer_from(request: AnswerRequest, count: int, answer: GradedAnswer) -> AnswerFrom:
    completion = answer.completion
    between = np.concatenate([request.kept[count:], request.forced])
    end = completion.token_ids[:-1] if completion.stopped else completion.token_ids
    return AnswerFrom(
        token_ids=np.concatenate([between, end]).astype(np.int32),
        tokens=count + len(between) + len(completion.token_ids),
        verdict=answer.verdict,
    )


async def sample_thoughts(
    policy: Policy, problems: Sequence[Problem], samples: int, journal: Journal, cut_share: float
) -> None:
    """Sample `samples` thoughts for every problem that is not in the journal, and append them.

    A share `cut_share` of them is cut at a random position. The reflection model must also learn
    thoughts that never state the answer.
    """
    missing = [p for p in problems if thought_id(p, samples - 1) not in journal]
    for start in range(0, len(missing), SAMPLED_AT_ONCE):
        for thought in await policy.think_about(missing[start : start + SAMPLED_AT_ONCE], samples):
            if thought.id not in journal:
                journal.append(_perhaps_cut(thought, policy.seed, cut_share).to_row())


def _perhaps_cut(thought: Thought, seed: int, cut_share: float) -> Thought:
    # A seed per thought, so a restart in the middle of a file gives the same cuts.
    rng = np.random.default_rng(derive_seed(seed, thought.id, "cut"))
    if rng.random() >= cut_share or not len(thought.token_ids):
        return thought
    cut = int(rng.integers(1, len(thought.token_ids) + 1))
    return replace(thought, token_ids=thought.token_ids[:cut], closed=False)


def thought_id(problem: Problem, sample: int) -> str:
    """Return the id of thought number `sample` of a problem; it is unique in a file."""
    return f"{problem.id}/{sample}"
