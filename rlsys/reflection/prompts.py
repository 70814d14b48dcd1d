"""Every text that is put to the reflection model and to its teacher.

The reflection model sees a question and a numbered response, never the gold answer: in use there is
none. Its reply begins with a prefill. Training rows are split at the same place, so the tokens that
it is trained to write follow the tokens that it will be given.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from rlsys.algorithms.reflection.detection import PREFILL, RESULT, THINK
from rlsys.config import PromptConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How the reflection model is asked, and how it labels.

    A label stands behind its `[i].`, which rlsys.algorithms.reflection.read_labels looks for.
    """

    question: str
    """The user turn, with {problem}, {chunks} and {count}."""
    chunk: str
    """A chunk in it, with {number} and {text}."""
    between_chunks: str
    line: str
    """A label in the reply, with {number} and {label}; the first one begins with the prefill."""
    between_lines: str
    think: str
    """Label of a chunk that only reasons; a single token, as is `result`."""
    result: str
    """Label of a chunk that states an answer."""

    @property
    def prompt(self) -> PromptConfig:
        """How the user turn becomes token ids; `rlsys sft` must be given the same."""
        return PromptConfig(prefill=PREFILL)

    def user_turn(self, problem: str, chunks: Sequence[str]) -> str:
        """Ask about the chunks [N] of a response to `problem`."""
        numbered = self.between_chunks.join(
            self.chunk.format(number=i, text=text) for i, text in enumerate(chunks, 1)
        )
        return self.question.format(problem=problem, chunks=numbered, count=len(chunks))

    def reply(self, results: Collection[int], num_chunks: int) -> str:
        """What follows the prefill if the chunks `results`, counted from 0, state an answer."""
        labels = (self.result if i in results else self.think for i in range(num_chunks))
        lines = (self.line.format(number=i, label=label) for i, label in enumerate(labels, 1))
        return self.between_lines.join(lines).removeprefix(PREFILL)


TEXT: Final = Layout(
    question="""\
Below are a question and a response that thinks aloud about it. The response is cut into \
{count} parts, and each part begins with its number.

Question:
{problem}

Response:
{chunks}

Give each of the {count} parts one of two labels:
- Think: the part works towards an answer.
- Result: the part states an answer to the question, whether or not the response goes on afterwards.

Write one line per part, from [1] to [{count}], with a blank line between two lines, and nothing \
else:
[number]. Think or Result""",
    chunk="**[{number}].** {text}",
    between_chunks="\n\n",
    line="[{number}]. {label}",
    between_lines="\n\n",
    think=THINK,
    result=RESULT,
)
"""For language models."""

COMPACT: Final = Layout(
    question="{problem}\n{chunks}",
    chunk="[{number}]{text}",
    between_chunks="",
    line="[{number}].{label}",
    between_lines="",
    think="T",
    result="R",
)
"""For the tiny model, whose tokens are characters."""


def layout_named(name: str) -> Layout:
    """The layout that `detector.layout` names."""
    match name:
        case "text":
            return TEXT
        case "compact":
            return COMPACT
        case _:
            raise ValueError(f"layout {name!r} is unknown; use 'text' or 'compact'")
