"""Supervised dialogues about arithmetic, in the format of the economics environment.

They teach the format: answer one question after the other, each with a thought and a box. The style
of a trace does not depend on the budget in the prompt. The policy learns in reinforcement learning
how to spend the budget.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rlsys.config import DialogueTraces
from rlsys.data.arithmetic import arithmetic_problem, draw_texts
from rlsys.sft.rows import row
from rlsys.sft.traces import draw_trace
from rlsys.tokenization.prompts import PromptRenderer
from rlsys.tokenization.tokenizer import encode
from rlsys.types import Kind, Sample, Tokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class DialogueRows:
    """Dialogues over training problems; each ends after its last problem or with its budget."""

    def __init__(self, data: DialogueTraces, tokenizer: PreTrainedTokenizerBase) -> None:
        self._data = data
        self._tokenizer = tokenizer
        self._renderer = PromptRenderer(tokenizer, data.prompt)
        self._eos = self._renderer.end_of_turn

    def samples(self, step: int, count: int) -> list[Sample]:
        """Return the rows of `step`. All problems are training problems, none is held out."""
        # Seed and step alone determine the rows, so a resumed run continues with the same rows.
        rng = np.random.default_rng([self._data.seed, step])
        texts = draw_texts(rng, self._data.terms, False, count * self._data.problems)
        size = self._data.problems
        return [self._row(texts[i * size : (i + 1) * size], rng) for i in range(count)]

    def _row(self, texts: list[str], rng: np.random.Generator) -> Sample:
        low, high = self._data.budget
        remaining = int(rng.integers(low, high + 1))
        prompt, segments = self._renderer.render_first(texts[0], self._facts(0, remaining)), []
        for number, text in enumerate(texts):
            if number > 0:
                facts = self._facts(number, remaining)
                turn = self._renderer.render_next(text, facts, last_token=self._eos)
                segments.append((Kind.OBSERVATION, turn))
            reply = self._reply(text, rng)[:remaining]
            segments.append((Kind.ANSWER, reply))
            remaining -= len(reply)
            if remaining == 0:
                break
        return row(prompt, *segments)

    def _facts(self, answered: int, remaining: int) -> dict[str, float]:
        left = self._data.problems - answered
        return {
            "remaining": remaining,
            "questions_remaining": left,
            "per_question": remaining // left,
            "number": answered + 1,
            "problems": self._data.problems,
        }

    def _reply(self, text: str, rng: np.random.Generator) -> Tokens:
        trace = draw_trace(arithmetic_problem(text, ""), rng, self._data.habits)
        written = self._data.reply.replace("{answer}", trace.answer)
        ids = encode(self._tokenizer, written.replace("{thought}", trace.thought))
        return np.array([*ids, self._eos], np.int32)
