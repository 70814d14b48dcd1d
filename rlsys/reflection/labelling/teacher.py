"""Which chunks of a thought state the right answer, by a large model in two steps.

First it labels every chunk of a window of at most 1,024 tokens; then each chunk that it took for
the right answer, and the last chunk in any case, is put to it alone. What it writes is read
strictly: a window with a missing label is not used, and every reply that breaks the form is
counted (arXiv 2505.19862, Section 3; docs/reflection.md).
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from rlsys.algorithms.reflection import ChunkedThought, windows
from rlsys.errors import DataError, EngineError
from rlsys.reflection.labelling.arithmetic import result_chunks
from rlsys.reflection.labelling.journal import Journal, read_journal
from rlsys.reflection.labelling.responses import Thought
from rlsys.reflection.prompts import RIGHT, TEACHER_LABELS, classify_prompt, verify_prompt

CLASSIFY_TOKENS: Final = 8192
VERIFY_TOKENS: Final = 2048

_NUMBER: Final = re.compile(r"^\W*\[(\d{1,6})\]\W", re.MULTILINE)
_LABEL: Final = re.compile(rf"Label:\W*({'|'.join(TEACHER_LABELS)})\b", re.IGNORECASE)
_VERDICT: Final = re.compile(r"Answer:\W*(Yes|No)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """What a teacher says of one thought of N chunks."""

    id: str
    """Of the thought."""
    chunks: int
    results: tuple[int, ...]
    """Chunks that state the right answer, counted from 0, increasing; empty if none does."""
    bad: Mapping[str, int] = field(default_factory=dict)
    """Replies that broke the form, by kind: missing_label, double_label, no_answer."""

    def to_row(self) -> dict[str, Any]:
        """As a row of a JSON lines file."""
        bad = {"bad": dict(self.bad)} if self.bad else {}
        return {"id": self.id, "chunks": self.chunks, "results": list(self.results)} | bad


def read_labels_file(path: Path) -> Iterator[Labels]:
    """Yield the labels of a JSON lines file. Raises DataError for a malformed row."""
    for row in read_journal(path):
        try:
            results, chunks = tuple(map(int, row["results"])), int(row["chunks"])
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"{path}, row {row['id']!r}: not the labels of a thought ({error!r}); label again"
            ) from error
        yield Labels(id=row["id"], chunks=chunks, results=results, bad=row.get("bad", {}))


class Teacher(Protocol):
    """Whatever knows which chunks state the right answer."""

    async def label(self, thought: Thought, chunked: ChunkedThought) -> Labels:
        """Return the labels of a thought. Raises EngineError if they cannot be had now."""
        ...


class ArithmeticTeacher:
    """Reads the totals of the tiny reasoner's thoughts: never wrong, and free."""

    async def label(self, thought: Thought, chunked: ChunkedThought) -> Labels:
        """Return the labels of an arithmetic thought."""
        results = result_chunks(thought.problem, chunked)
        return Labels(id=thought.id, chunks=len(chunked.chunks), results=results)


class Chat(Protocol):
    """A language model that answers one user turn."""

    async def complete(self, prompt: str, max_tokens: int) -> str:
        """Return its greedy reply. Raises EngineError if there is none after bounded retries."""
        ...


class ModelTeacher:
    """Asks a large model, window by window and then candidate by candidate."""

    def __init__(self, chat: Chat, *, gold: bool = True) -> None:
        """`gold` False labels windows without the right answer, for measuring."""
        self._chat = chat
        self._gold = gold

    async def label(self, thought: Thought, chunked: ChunkedThought) -> Labels:
        """Return the labels of a thought. Raises EngineError if a call fails."""
        texts, bad = chunked.texts, Counter[str]()
        packed = windows(chunked.token_counts)
        found = await asyncio.gather(*(self._classify(thought, texts, w, bad) for w in packed))
        candidates = {chunk for window in found for chunk in window}
        if texts:
            candidates.add(len(texts) - 1)
        asked = sorted(candidates)
        kept = await asyncio.gather(*(self._verify(thought, texts[c], bad) for c in asked))
        results = tuple(chunk for chunk, yes in zip(asked, kept, strict=True) if yes)
        return Labels(id=thought.id, chunks=len(texts), results=results, bad=dict(bad))

    async def _classify(
        self, thought: Thought, texts: Sequence[str], window: Sequence[int], bad: Counter[str]
    ) -> list[int]:
        """The chunks of a window that the teacher takes for the right answer."""
        problem = thought.problem
        gold = problem.answer if self._gold else None
        prompt = classify_prompt(problem.text, gold, [texts[i] for i in window])
        reply = await self._chat.complete(prompt, CLASSIFY_TOKENS)
        labels, doubled = read_classification(reply, len(window))
        if doubled:
            bad["double_label"] += 1
        if labels is None:
            bad["missing_label"] += 1
            return []
        return [chunk for chunk, label in zip(window, labels, strict=True) if label == RIGHT]

    async def _verify(self, thought: Thought, text: str, bad: Counter[str]) -> bool:
        problem = thought.problem
        prompt = verify_prompt(problem.text, problem.answer, text)
        verdict = read_verification(await self._chat.complete(prompt, VERIFY_TOKENS))
        if verdict is None:
            bad["no_answer"] += 1
        return verdict is True


def read_classification(reply: str, count: int) -> tuple[list[str] | None, bool]:
    """Return the label of every part [count], and whether some part had two.

    Labels belong to the number at the beginning of a line before them; the first one of a number
    stands. None instead of labels if one is missing.
    """
    marks = list(_NUMBER.finditer(reply))
    ends = [*(mark.start() for mark in marks[1:]), len(reply)]
    labels: dict[int, str] = {}
    doubled = False
    for mark, end in zip(marks, ends, strict=False):  # without marks there is an end too many
        for label in _LABEL.findall(reply[mark.end() : end]):
            doubled |= int(mark.group(1)) in labels
            labels.setdefault(int(mark.group(1)), label.title())
    wanted = range(1, count + 1)
    return ([labels[i] for i in wanted] if all(i in labels for i in wanted) else None), doubled


def read_verification(reply: str) -> bool | None:
    """The last `Answer: Yes` or `Answer: No` of a reply, or None."""
    verdicts = _VERDICT.findall(reply)
    return verdicts[-1].lower() == "yes" if verdicts else None


@dataclass(slots=True, kw_only=True)
class Labelling:
    """How far the labelling of a file has come."""

    labelled: int = 0
    """Thoughts labelled in this call."""
    skipped: int = 0
    """Thoughts that had labels already."""
    failed: int = 0
    """Thoughts that the teacher could not be asked about; the next call asks again."""
    last_error: str = ""
    """Of the last one that failed."""
    bad: Counter[str] = field(default_factory=Counter)


async def label_thoughts(
    teacher: Teacher,
    thoughts: Iterable[Thought],
    chunk: Callable[[Thought], ChunkedThought],
    journal: Journal,
    *,
    at_once: int,
    give_up_after: int,
) -> Labelling:
    """Label every thought that the journal lacks, and append each as soon as it is known.

    Args:
        teacher: who knows.
        thoughts: read one by one, never held together.
        chunk: their chunks, the same ones that the detector will see.
        journal: where labels go, and what need not be asked.
        at_once: thoughts in hand at the same time.
        give_up_after: failures in a row that end the labelling.

    Raises:
        EngineError: that many thoughts in a row failed. What was labelled is in the journal.
    """
    state, in_a_row = Labelling(), 0
    waiting = iter(thoughts)

    async def worker() -> None:
        nonlocal in_a_row
        for thought in waiting:
            if thought.id in journal:
                state.skipped += 1
                continue
            try:
                labels = await teacher.label(thought, chunk(thought))
            except EngineError as error:
                state.failed += 1
                in_a_row += 1
                state.last_error = str(error)
            else:
                journal.append(labels.to_row())
                state.labelled += 1
                state.bad.update(labels.bad)
                in_a_row = 0
            if in_a_row >= give_up_after:
                return

    await asyncio.gather(*(worker() for _ in range(at_once)))
    if in_a_row >= give_up_after:
        raise EngineError(
            f"the teacher failed {in_a_row} times in a row ({state.last_error}); {len(journal)} "
            "thoughts are labelled, and the same command goes on with the others"
        )
    return state
