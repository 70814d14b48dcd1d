"""All prompts of the reflection model and of its teacher.

The reflection model gets a question and a numbered response, but not the gold answer: it must work
on problems without one. Its reply begins with a prefill. Training rows are split into prompt and
response at the same position, so the model is trained on the token sequence that it later sees.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from rlsys.algorithms.reflection.detection import PREFILL, RESULT, THINK
from rlsys.config import PromptConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The format of the prompt and of the reply.

    A label follows its chunk number `[i].`; rlsys.algorithms.reflection.read_labels searches for
    that number.
    """

    question: str
    """The user turn, with {problem}, {chunks} and {count}."""
    chunk: str
    """One chunk of the user turn, with {number} and {text}."""
    between_chunks: str
    line: str
    """One line of the reply, with {number} and {label}; the first line begins with the prefill."""
    between_lines: str
    think: str
    """Label of a chunk that only reasons; a single token."""
    result: str
    """Label of a chunk that states an answer; a single token."""

    @property
    def prompt(self) -> PromptConfig:
        """Settings of the prompt; `rlsys sft` must use the same ones."""
        return PromptConfig(prefill=PREFILL)

    def user_turn(self, problem: str, chunks: Sequence[str]) -> str:
        """Return the user turn for the chunks [N] of a response to `problem`."""
        numbered = self.between_chunks.join(
            self.chunk.format(number=i, text=text) for i, text in enumerate(chunks, 1)
        )
        turn = self.question.format(problem=problem, chunks=numbered, count=len(chunks))
        return turn.strip()  # rows of files are stripped too, so both give the same prompt

    def reply(self, results: Collection[int], num_chunks: int) -> str:
        """Return the reply after the prefill; the chunks `results`, from 0, state an answer."""
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
"""For the tiny model, whose tokens are single characters."""


RIGHT: Final = "Right Result"
"""Label that the teacher gives to a part that states the gold answer."""
TEACHER_LABELS: Final = ("Reasoning", RIGHT, "Wrong Result")


def classify_prompt(problem: str, gold: str | None, chunks: Sequence[str]) -> str:
    """Return a prompt that asks the teacher to label every chunk of a window.

    `read_classification` parses the reply. Without the gold answer (None) the teacher must find
    the right answer itself.
    """
    numbered = "\n\n".join(f"**[{i}].** {text}" for i, text in enumerate(chunks, 1))
    given = "a question, its correct answer, and a" if gold is not None else "a question and a"
    answer = f"Correct answer:\n{gold}\n\n" if gold is not None else ""
    return f"""\
Below are {given} stretch of a response that thinks aloud about the \
question. The stretch is cut into {len(chunks)} parts, and each part begins with its number.

Question:
{problem}

{answer}Stretch of the response:
{numbered}

Give each of the {len(chunks)} parts one of three labels:
- Reasoning: the part works towards an answer, or checks one, without stating an answer to the \
question.
- Right Result: the part states an answer to the question, and it equals the correct answer.
- Wrong Result: the part states an answer to the question, and it differs from the correct answer.

Write two lines per part, for all parts from [1] to [{len(chunks)}], in this form:
[number]. Reason: one short sentence
Label: Reasoning, Right Result or Wrong Result"""


def verify_prompt(problem: str, gold: str, chunk: str) -> str:
    """Return a prompt that asks the teacher whether one chunk states the gold answer.

    `read_verification` parses the reply.
    """
    return f"""\
Below are a question, its correct answer, and one part of a response to the question.

Question:
{problem}

Correct answer:
{gold}

Part of the response:
{chunk}

Has the response, by the end of this part, stated the correct answer to the question? A value on \
the way there does not count, and neither does a plan to compute it. Think first, in a few \
sentences. Then write one last line, which is either
Answer: Yes
or
Answer: No"""


def layout_named(name: str) -> Layout:
    """Return the layout that `detector.layout` names. Raises ValueError for another name."""
    match name:
        case "text":
            return TEXT
        case "compact":
            return COMPACT
        case _:
            raise ValueError(f"layout {name!r} is unknown; use 'text' or 'compact'")
