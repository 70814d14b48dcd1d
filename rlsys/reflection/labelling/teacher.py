"""Find the chunks of a thought that state the right answer, with a large model in two steps.

First the model labels every chunk in windows of at most 1,024 tokens. Then each chunk with the
label `Right Result`, and always the last chunk, is sent alone to be verified. Replies are parsed
strictly: a window with a missing label is not used, and every malformed reply is counted
(arXiv 2505.19862, Section 3; docs/reflection.md).
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from rlsys.algorithms.reflection import ChunkedThought, windows
from rlsys.errors import DataError, EngineError
from rlsys.reflection.labelling.journal import Journal, read_journal
from rlsys.reflection.labelling.responses import Thought
from rlsys.reflection.prompts import RIGHT, TEACHER_LABELS, classify_prompt, verify_prompt
from rlsys.types import Problem

ResultChunks = Callable[[Problem, ChunkedThought], tuple[int, ...]]
CLASSIFY_TOKENS: Final = 8192
VERIFY_TOKENS: Final = 2048

_NUMBER: Final = re.compile(r"^\W*\[(\d{1,6})\]\W", re.MULTILINE)
_LABEL: Final = re.compile(rf"Label:\W*({'|'.join(TEACHER_LABELS)})\b", re.IGNORECASE)
_VERDICT: Final = re.compile(r"Answer:\W*(Yes|No)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """The labels that a teacher gave to one thought."""

    id: str
    """Id of the thought."""
    chunks: int
    """Number of chunks of the thought."""
    results: tuple[int, ...]
    """Chunks that state the right answer, counted from 0, increasing; empty if none does."""
    bad: Mapping[str, int] = field(default_factory=dict)
    """Malformed replies by kind: missing_label, double_label, no_answer."""

    def to_row(self) -> dict[str, object]:
        """Return the labels as a row of a JSON lines file."""
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
    """Labels the chunks of a thought."""

    async def label(self, thought: Thought, chunked: ChunkedThought) -> Labels:
        """Return the labels of a thought. Raises EngineError if that fails for now."""
        ...


class ReadingTeacher:
    """Reads thoughts in a notation of our own. It is exact and needs no model."""

    def __init__(self, result_chunks: ResultChunks) -> None:
        """`result_chunks` finds the chunks of a thought that state the right answer."""
        self._result_chunks = result_chunks

    async def label(self, thought: Thought, chunked: ChunkedThought) -> Labels:
        """Return the labels of a thought."""
        results = self._result_chunks(thought.problem, chunked)
        return Labels(id=thought.id, chunks=len(chunked.chunks), results=results)


class Chat(Protocol):
    """A language model that answers one user turn."""

    async def complete(self, prompt: str, max_tokens: int) -> str:
        """Return the greedy reply. Raises EngineError if there is none after a few retries."""
        ...


class ModelTeacher:
    """Asks a large model: first window by window, then one candidate chunk at a time."""

    def __init__(self, chat: Chat, *, gold: bool = True) -> None:
        """`gold` False hides the right answer in the first step, to measure what that changes."""
        self._chat = chat
        self._gold = gold

    async def label(self, thought: Thought, chunked: ChunkedThought) -> Labels:
        """Return the labels of a thought. Raises EngineError if a call fails."""
        texts, bad = chunked.texts, Counter[str]()
        packed = windows(chunked.token_counts)
        found = await asyncio.gather(*(self._classify(thought, texts, w, bad) for w in packed))
        candidates = {chunk for window in found for chunk in window}
        if texts:
            # Verified in any case: if the first step missed the answer, it is most likely here.
            candidates.add(len(texts) - 1)
        ordered = sorted(candidates)
        confirmed = await asyncio.gather(*(self._verify(thought, texts[c], bad) for c in ordered))
        results = tuple(chunk for chunk, yes in zip(ordered, confirmed, strict=True) if yes)
        return Labels(id=thought.id, chunks=len(texts), results=results, bad=dict(bad))

    async def _classify(
        self, thought: Thought, texts: Sequence[str], window: Sequence[int], bad: Counter[str]
    ) -> list[int]:
        """Return the chunks of a window that the teacher labels `Right Result`."""
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
    """Return the labels of all parts [count], and whether a part had more than one label.

    A label belongs to the last number at the start of a line before it. The first label of a number
    counts. The labels are None if any part has none.
    """
    marks = list(_NUMBER.finditer(reply))
    ends = [*(mark.start() for mark in marks[1:]), len(reply)]
    labels: dict[int, str] = {}
    doubled = False
    for mark, end in zip(marks, ends, strict=False):  # without marks, ends has one entry
        for label in _LABEL.findall(reply[mark.end() : end]):
            doubled |= int(mark.group(1)) in labels
            labels.setdefault(int(mark.group(1)), label.title())
    parts = range(1, count + 1)
    # All or nothing: a missing label often means that the teacher has counted wrongly, so the other
    # labels of the window may belong to other chunks.
    return ([labels[i] for i in parts] if all(i in labels for i in parts) else None), doubled


def read_verification(reply: str) -> bool | None:
    """Return the last `Answer: Yes` or `Answer: No` of a reply as a bool; None without one."""
    verdicts = _VERDICT.findall(reply)
    return verdicts[-1].lower() == "yes" if verdicts else None


@dataclass(slots=True, kw_only=True)
class Labelling:
    """Counts of one call of `label_thoughts`."""

    labelled: int = 0
    """Thoughts labelled in this call."""
    skipped: int = 0
    """Thoughts that had labels before this call."""
    failed: int = 0
    """Thoughts that the teacher did not label; the next call tries them again."""
    last_error: str = ""
    """Message of the last failure."""
    bad: Counter[str] = field(default_factory=Counter)
    """Malformed replies by kind, see Labels."""


async def label_thoughts(
    teacher: Teacher,
    thoughts: Iterable[Thought],
    chunk: Callable[[Thought], ChunkedThought],
    journal: Journal,
    *,
    at_once: int,
    give_up_after: int,
) -> Labelling:
    """Label every thought that is not in the journal, and append its labels at once.

    Args:
        teacher: labels the thoughts.
        thoughts: read one by one, so that a large file is never in memory as a whole.
        chunk: returns the chunks of a thought, as the detector will see them.
        journal: receives the labels; thoughts in it are skipped.
        at_once: thoughts that are labelled at the same time.
        give_up_after: consecutive failures after which labelling stops.

    Raises:
        EngineError: that many thoughts failed one after the other. The labels so far are in the
            journal.
    """
    state, in_a_row = Labelling(), 0
    # All workers take from one iterator, so each thought is labelled by exactly one of them.
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
                # One failure may concern this thought only, for instance one that is too long. Many
                # failures in a row mean that the teacher is gone.
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
            "thoughts are labelled; run the same command again to label the others"
        )
    return state
