"""Make training rows from labelled thoughts, in the columns that `rlsys sft` reads.

reflection_rows   for the reflection model: a numbered response and its labels
path_rows         for supervised fine-tuning: a truncated path and its answer
pair_rows         for preference learning: the truncated path is preferred to the whole path

A truncated path is a thought that is cut after the chunk that first states the right answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from rlsys.algorithms.reflection import ChunkedThought
from rlsys.errors import DataError
from rlsys.reflection.labelling.responses import AnswerFrom, Thought
from rlsys.reflection.labelling.teacher import Labels
from rlsys.reflection.prompts import Layout
from rlsys.types import Tokens, Verdict

Row = dict[str, str]
"""Columns problem and response, or problem, chosen and rejected."""


class LabelledThought(NamedTuple):
    """A thought, its chunks, and the indices of the chunks that state the right answer."""

    thought: Thought
    chunked: ChunkedThought
    results: tuple[int, ...]

    @property
    def known_tokens(self) -> int:
        """Tokens up to the end of the first chunk with the right answer; all if there is none."""
        last = len(self.chunked.chunks) - 1
        # `kept_tokens` would drop the last piece of the last chunk, and the answer with it.
        if not self.results or self.results[0] == last:
            return len(self.thought.token_ids)
        return self.chunked.kept_tokens(self.results[0])


def labelled_thoughts(
    thoughts: Iterable[Thought],
    labels: Iterable[Labels],
    chunk: Callable[[Thought], ChunkedThought],
) -> Iterator[LabelledThought]:
    """Yield the thoughts that have labels.

    Raises:
        DataError: a thought now has another number of chunks than when it was labelled, so the
            indices of its labels mean other chunks.
    """
    label_of = {label.id: label for label in labels}
    for thought in thoughts:
        label = label_of.get(thought.id)
        if label is None:
            continue
        chunked = chunk(thought)
        if len(chunked.chunks) != label.chunks:
            raise DataError(
                f"thought {thought.id!r} was labelled in {label.chunks} chunks but now has "
                f"{len(chunked.chunks)}; label again, or restore detector.chunking"
            )
        yield LabelledThought(thought, chunked, label.results)


def reflection_rows(
    labelled: Iterable[LabelledThought], layout: Layout, *, unanswered: bool
) -> Iterator[Row]:
    """Yield the rows of the reflection model; train them with `layout.prompt`.

    Args:
        labelled: thoughts; those without a chunk are left out.
        layout: the format in which the reflection model will be used.
        unanswered: True includes thoughts that never state the right answer.
    """
    for thought, chunked, results in labelled:
        if not chunked.chunks or not (results or unanswered):
            continue
        yield {
            "problem": layout.user_turn(thought.problem.text, chunked.texts),
            "response": layout.reply(results, len(chunked.chunks)),
        }


class AnsweredThought(NamedTuple):
    """A labelled thought with two answers: after the truncated path, and after the whole path."""

    labelled: LabelledThought
    truncated: AnswerFrom
    whole: AnswerFrom


def path_rows(
    paths: Iterable[AnsweredThought], decode: Callable[[Tokens], str], *, per_problem: int
) -> Iterator[Row]:
    """Yield truncated paths with a right answer, at most `per_problem` of one problem.

    `decode` returns the text of tokens, with special tokens.
    """
    for path in _right(paths, per_problem, cut_only=False):
        thought = path.labelled.thought
        yield {
            "problem": thought.problem.text,
            "response": _response(path, path.labelled.known_tokens, path.truncated, decode),
        }


def pair_rows(
    paths: Iterable[AnsweredThought], decode: Callable[[Tokens], str], *, per_problem: int
) -> Iterator[Row]:
    """Yield pairs: a truncated path with a right answer is preferred to the whole path.

    If only the last chunk states the answer, both paths are the same, so the thought is left out.
    """
    for path in _right(paths, per_problem, cut_only=True):
        thought = path.labelled.thought
        length = len(thought.token_ids)
        yield {
            "problem": thought.problem.text,
            "chosen": _response(path, path.labelled.known_tokens, path.truncated, decode),
            "rejected": _response(path, length, path.whole, decode),
        }


def _right(
    paths: Iterable[AnsweredThought], per_problem: int, *, cut_only: bool
) -> Iterator[AnsweredThought]:
    taken: Counter[str] = Counter()
    for path in paths:
        thought = path.labelled.thought
        # The limit per problem keeps easy problems from dominating: more of their paths are right.
        if path.truncated.verdict is not Verdict.RIGHT or taken[thought.problem.id] >= per_problem:
            continue
        if cut_only and path.labelled.known_tokens == len(thought.token_ids):
            continue
        taken[thought.problem.id] += 1
        yield path


def _response(
    path: AnsweredThought, kept: int, answer: AnswerFrom, decode: Callable[[Tokens], str]
) -> str:
    return decode(np.concatenate([path.labelled.thought.token_ids[:kept], answer.token_ids]))


def label_counts(labelled: Iterable[LabelledThought]) -> Mapping[str, int]:
    """Count thoughts, thoughts that state the right answer, chunks, and result chunks."""
    counts: Counter[str] = Counter()
    for _, chunked, results in labelled:
        counts.update(
            thoughts=1,
            answered=int(bool(results)),
            chunks=len(chunked.chunks),
            result_chunks=len(results),
        )
    return counts
