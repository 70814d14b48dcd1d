"""What the policy writes: thoughts, and answers from any place of a thought.

An answer is the same act wherever the thought ends: at its own end, at a cut (a revision), or
where its tokens ran out. Only the forced text differs, and none of it was sampled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from rlsys.environments.seeds import derive_seed
from rlsys.errors import DataError
from rlsys.reflection.journal import Journal, read_journal
from rlsys.tokenization.prompts import PromptRenderer
from rlsys.tokenization.think import ThinkTokens
from rlsys.types import (
    Completion,
    Decode,
    GenerationRequest,
    Generator,
    Grader,
    GradingRequest,
    Problem,
    Tokens,
    Verdict,
)

SAMPLED_AT_ONCE: Final = 256
"""Problems between two writes: what a kill can lose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Thought:
    """A sampled thought about a problem."""

    id: str
    """See `thought_id`."""
    problem: Problem
    token_ids: Tokens
    """The policy's tokens, without the one that ends the thought."""
    closed: bool
    """True if the policy ended it; False if its tokens ran out."""

    def to_row(self) -> dict[str, Any]:
        """As a row of a JSON lines file."""
        return {
            "id": self.id,
            "problem_id": self.problem.id,
            "problem": self.problem.text,
            "answer": self.problem.answer,
            "thought_ids": self.token_ids.tolist(),
            "closed": self.closed,
        }

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> Thought:
        """The thought of a row. Raises KeyError, TypeError or ValueError for a malformed one."""
        problem = Problem(id=row["problem_id"], text=row["problem"], answer=row["answer"])
        ids = np.array(row["thought_ids"], np.int32)
        return cls(id=row["id"], problem=problem, token_ids=ids, closed=bool(row["closed"]))


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


class Answer(NamedTuple):
    """An answer from some place of a thought."""

    token_ids: Tokens
    """Everything behind the kept thought: what closes it, the header, the answer without EOS."""
    tokens: int
    """Of the whole response: kept thought, forced tokens and answer, EOS included."""
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The policy behind a generator, and the grader of its answers."""

    generator: Generator
    grader: Grader
    renderer: PromptRenderer
    think: ThinkTokens
    decode: Decode
    """Token ids to text, special tokens dropped."""
    thought_tokens: int
    """Longest thought."""
    answer_tokens: int
    """Most sampled tokens of an answer."""
    temperature: float
    seed: int

    async def think_about(self, problems: Sequence[Problem], samples: int) -> list[Thought]:
        """Sample `samples` thoughts about each problem, in order."""
        requests = [
            GenerationRequest(
                token_ids=self.renderer.render(problem),
                n=samples,
                max_tokens=self.thought_tokens,
                stop_token_ids=(self.think.think_end_id, *self.think.eos_ids),
                temperature=self.temperature,
                seed=derive_seed(self.seed, problem.id, "thought"),
            )
            for problem in problems
        ]
        thoughts = []
        for problem, completions in zip(
            problems, await self.generator.generate(requests), strict=True
        ):
            for sample, completion in enumerate(completions):
                last = int(completion.token_ids[-1])
                closed = completion.stopped and last == self.think.think_end_id
                thoughts.append(
                    Thought(
                        id=thought_id(problem, sample),
                        problem=problem,
                        # A thought that ends the turn is cut before that: it can be answered from.
                        token_ids=_without_stop(completion),
                        closed=closed,
                    )
                )
        return thoughts

    async def answer(self, thoughts: Sequence[Thought], kept: Sequence[int]) -> list[Answer]:
        """Answer each thought from its first `kept` tokens on, and grade the answer."""
        forced = [self._forced(t, k) for t, k in zip(thoughts, kept, strict=True)]
        requests = [
            GenerationRequest(
                token_ids=np.concatenate(
                    [self.renderer.render(thought.problem), thought.token_ids[:count], between]
                ).astype(np.int32),
                n=1,
                max_tokens=self.answer_tokens,
                stop_token_ids=self.think.eos_ids,
                temperature=self.temperature,
                seed=derive_seed(self.seed, thought.id, "answer", count),
            )
            for thought, count, between in zip(thoughts, kept, forced, strict=True)
        ]
        completions = await self.generator.generate(requests)
        endings = [
            np.concatenate([between, _without_stop(completion)])
            for between, (completion,) in zip(forced, completions, strict=True)
        ]
        verdicts = await self.grader.grade(
            [
                GradingRequest(self.decode(ending.tolist()), thought.problem.answer)
                for ending, thought in zip(endings, thoughts, strict=True)
            ]
        )
        return [
            Answer(ending, count + len(between) + len(completion.token_ids), verdict)
            for ending, count, between, (completion,), verdict in zip(
                endings, kept, forced, completions, verdicts, strict=True
            )
        ]

    def _forced(self, thought: Thought, kept: int) -> Tokens:
        """What comes between thought and answer; a thought that closed itself needs no closing."""
        whole = thought.closed and kept == len(thought.token_ids)
        closing = self.think.closing_ids[:0] if whole else self.think.closing_ids
        end = [self.think.think_end_id]
        return np.concatenate([closing, end, self.think.header_ids]).astype(np.int32)


def _without_stop(completion: Completion) -> Tokens:
    """The tokens before the one that stopped it."""
    return completion.token_ids[:-1] if completion.stopped else completion.token_ids


async def sample_thoughts(
    policy: Policy, problems: Sequence[Problem], samples: int, journal: Journal, cut_share: float
) -> None:
    """Sample `samples` thoughts about every problem that the journal lacks, and append them.

    A share `cut_share` of them is cut at a random place.
    """
    missing = [p for p in problems if thought_id(p, samples - 1) not in journal]
    for start in range(0, len(missing), SAMPLED_AT_ONCE):
        for thought in await policy.think_about(missing[start : start + SAMPLED_AT_ONCE], samples):
            if thought.id not in journal:
                journal.append(_perhaps_cut(thought, policy.seed, cut_share).to_row())


def _perhaps_cut(thought: Thought, seed: int, cut_share: float) -> Thought:
    rng = np.random.default_rng(derive_seed(seed, thought.id, "cut"))
    if rng.random() >= cut_share or not len(thought.token_ids):
        return thought
    cut = int(rng.integers(1, len(thought.token_ids) + 1))
    return replace(thought, token_ids=thought.token_ids[:cut], closed=False)


def thought_id(problem: Problem, sample: int) -> str:
    """The id of a problem's thought number `sample`, unique in a file."""
    return f"{problem.id}/{sample}"
