"""Supervised rows for Countdown: written searches in the format of the anytime environment."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rlsys.config import AnytimeConfig, CountdownTraces
from rlsys.data.countdown import Puzzle, draw_puzzles, expression
from rlsys.sft.countdown import draw_search
from rlsys.sft.rows import row
from rlsys.tokenization.prompts import PromptRenderer
from rlsys.tokenization.think import ThinkTokens
from rlsys.tokenization.tokenizer import encode
from rlsys.types import Kind, Problem, Sample, Tokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class CountdownRows:
    """Searches over training problems, for any tokenizer.

    A row whose thought is cut has a right answer, also where the search has not found one yet. So
    the model learns to guess from an unfinished search. The answer of any other row is what its
    search found, which is wrong if the search failed.
    """

    def __init__(self, data: CountdownTraces, tokenizer: PreTrainedTokenizerBase) -> None:
        """Encode the forced texts. Raises ModelError if the tokenizer cannot write them."""
        self._data = data
        self._tokenizer = tokenizer
        self._renderer = PromptRenderer(tokenizer, data.prompt)
        self._think = ThinkTokens.resolve(
            tokenizer,
            AnytimeConfig(
                think_end=data.think_end, closing=data.closing, answer_header=data.answer_header
            ),
        )

    def samples(self, step: int, count: int) -> list[Sample]:
        """Return the rows of `step`. All problems are training problems, none is held out."""
        # Seed and step alone determine the rows, so a resumed run continues with the same rows.
        rng = np.random.default_rng([self._data.seed, step])
        puzzles = draw_puzzles(rng, self._data, held_out=False, size=count)
        return [self._row(puzzle, rng) for puzzle in puzzles]

    def _row(self, puzzle: Puzzle, rng: np.random.Generator) -> Sample:
        trace = draw_search(puzzle, rng, self._data.habits)
        thought, forced, answer = self._ids(trace.thought), self._think.header_ids, trace.answer
        if rng.random() < self._data.cut:
            thought = thought[: int(rng.integers(1, len(thought) + 1))]
            forced = self._think.cut_ids
            if not trace.solved:
                answer = expression(puzzle.numbers, puzzle.solution)
        else:
            thought = np.concatenate([thought, self._think.end.token_ids])
        problem = Problem(id="", text=puzzle.text, answer=puzzle.text)
        end = np.array([self._renderer.end_of_turn], np.int32)
        return row(
            self._renderer.render(problem),
            (Kind.THOUGHT, thought),
            (Kind.FORCED, forced),
            (Kind.ANSWER, np.concatenate([self._ids(answer + "}"), end])),
        )

    def _ids(self, text: str) -> Tokens:
        return np.array(encode(self._tokenizer, text), np.int32)
