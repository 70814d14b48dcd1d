"""Problems: where they come from, and the endless shuffled stream a run draws them from.

Files are read strictly: the first malformed row is refused with its file and line.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import islice
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from rlsys.config import (
    ArithmeticData,
    CountdownData,
    FileData,
    HubData,
    PreferenceFile,
    Source,
    SupervisedFile,
)
from rlsys.data.cells import (
    Row,
    Speaker,
    answer_at,
    is_unanswered,
    number_text,
    shortened,
    text_at,
    value_at,
)
from rlsys.data.columns import no_column
from rlsys.data.row_files import iterate_rows
from rlsys.data.table_rows import arrow_batches, numbered_rows
from rlsys.errors import DataError
from rlsys.grading.golds import gold_text
from rlsys.types import Problem

TaskT = TypeVar("TaskT")


class ProblemSet(NamedTuple):
    """The problems of a source, and what was left out of them."""

    problems: list[Problem]
    unanswered: int = 0
    """Rows skipped because `skip_unanswered` is set and they have no answer."""


def load_problems(source: Source) -> list[Problem]:
    """Return the problems of a source in its own order, gold answers cleaned.

    Raises DataError, with file and line, for whatever is missing, empty or malformed.
    """
    return load_problem_set(source).problems


def load_problem_set(source: Source, key: str = "data.*") -> ProblemSet:
    """Return the problems of a source with the number of rows left out.

    `key` is where the source is set, for the words that a refusal proposes.

    Raises DataError as `load_problems`.
    """
    match source:
        case ArithmeticData():
            from rlsys.data.arithmetic import arithmetic_problems

            return ProblemSet(arithmetic_problems(source))
        case CountdownData():
            from rlsys.data.countdown import countdown_problems

            return ProblemSet(countdown_problems(source))
        case FileData():
            return _problem_set(source_rows(source), source, ", ".join(source.path), key)
        case HubData():
            return _problem_set(source_rows(source), source, f"data set {source.name!r}", key)


def source_rows(source: FileData | HubData) -> Iterator[Row]:
    """Yield the rows of a source as they stand, all of them.

    Raises DataError, with file and line, for whatever is missing or unreadable.
    """
    if isinstance(source, HubData):
        yield from _hub_rows(source)
    else:
        for path in source.path:
            yield from iterate_rows(path)


def read_rows(source: SupervisedFile | PreferenceFile) -> Iterator[tuple[str, ...]]:
    """Yield the texts of the source's columns of every row of its files, in order, as written.

    Of a chat the prompt is the last user turn and a response the last assistant turn. Space around
    a text stays: a response that follows a prefill may have to begin with it.

    Raises DataError, with file and line, for a missing file, a malformed row or an empty text.
    """
    for path in source.path:
        for row in iterate_rows(path):
            texts = []
            for setting, column in source.columns.items():
                found, value = value_at(row.values, column)
                if not found:
                    raise no_column(row, source.columns, "data")
                speaker: Speaker = "user" if setting == "prompt_column" else "assistant"
                texts.append(text_at(row, column, value, speaker, source.earlier_turns))
            yield tuple(texts)


class TaskStream(Generic[TaskT]):
    """The endless sequence of a run's tasks: every epoch once through all, in its own order.

    The only state is the index of the next task, so a resumed run goes on where it stopped.
    """

    def __init__(self, tasks: Sequence[TaskT], *, seed: int, shuffle: bool) -> None:
        """Shuffle by (seed, epoch), or keep the order of `tasks` in every epoch."""
        self._tasks = tasks
        self._seed = seed
        self._shuffle = shuffle
        # Two, because groups in flight may straddle the end of an epoch.
        self._order = lru_cache(maxsize=2)(self._epoch_order)

    def __len__(self) -> int:
        """Tasks in one epoch."""
        return len(self._tasks)

    def task(self, index: int) -> TaskT:
        """Return the task at `index` (from 0) of the stream."""
        epoch, place = divmod(index, len(self._tasks))
        if self._shuffle:
            place = int(self._order(epoch)[place])
        return self._tasks[place]

    def _epoch_order(self, epoch: int) -> NDArray[np.int64]:
        return np.random.default_rng([self._seed, epoch]).permutation(len(self._tasks))


def _hub_rows(source: HubData) -> Iterator[Row]:
    import datasets

    name = f"data set {source.name!r}" + (f", subset {source.subset!r}" if source.subset else "")
    try:
        rows = datasets.load_dataset(source.name, source.subset, split=source.split)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise DataError(
            f"{name} has no split {source.split!r} that can be loaded ({reason}); check "
            "data.*.name, subset and split, and the network"
        ) from error
    yield from numbered_rows(f"{name}, split {source.split!r}", arrow_batches(rows))


def _problem_set(
    rows: Iterable[Row], source: FileData | HubData, name: str, key: str
) -> ProblemSet:
    stop = None if source.limit is None else source.offset + source.limit
    problems: list[Problem] = []
    count = 0
    for count, row in enumerate(islice(rows, source.offset, stop), 1):
        problem = _problem(source.offset + count - 1, row, source, key)
        if problem is not None:
            problems.append(problem)
    if not problems:
        raise DataError(_nothing(source, name, count))
    if source.id_column is not None:
        _refuse_repeated_ids(problems, source.id_column, name)
    return ProblemSet(problems, count - len(problems))


def _nothing(source: FileData | HubData, name: str, count: int) -> str:
    if count:
        return (
            f"none of the {count:,} rows of {name} has an answer in column "
            f"{source.answer_column!r}; name another data.*.answer_column"
        )
    if source.offset:
        return f"{name} has no row after the first {source.offset}; lower data.*.offset"
    return f"{name} is empty; name a file or split with at least one row"


def _problem(number: int, row: Row, source: FileData | HubData, key: str) -> Problem | None:
    """Return the problem of a row, or None if it has no answer and such rows are skipped."""
    has_text, text = value_at(row.values, source.problem_column)
    has_answer, answer = value_at(row.values, source.answer_column)
    if not (has_text and has_answer):
        wanted = {
            "problem_column": source.problem_column,
            "answer_column": source.answer_column,
        }
        raise no_column(row, wanted, key)
    if is_unanswered(answer):
        if source.skip_unanswered:
            return None
        raise DataError(
            f"{row.place}: column {source.answer_column!r} must hold a text or a number, not "
            f"{shortened(answer)}; correct the row, or set {key}.skip_unanswered=true to leave "
            "out rows without an answer"
        )
    return Problem(
        id=f"row-{number}" if source.id_column is None else _id(row, source.id_column, key),
        text=text_at(row, source.problem_column, text, "user", source.earlier_turns).strip(),
        answer=gold_text(
            answer_at(row, source.answer_column, answer, source.answers),
            None
            if source.tolerance_column is None
            else _tolerance(row, source.tolerance_column, key),
        ),
        difficulty=None
        if source.difficulty_column is None
        else _difficulty(row, source.difficulty_column, key),
    )


def _refuse_repeated_ids(problems: Sequence[Problem], column: str, name: str) -> None:
    seen: set[str] = set()
    for problem in problems:
        if problem.id in seen:
            raise DataError(
                f"{name}: id {problem.id!r} in column {column!r} occurs twice; "
                "leave data.*.id_column out to number the rows"
            )
        seen.add(problem.id)


def _id(row: Row, column: str, key: str) -> str:
    found, value = value_at(row.values, column)
    if not found:
        raise no_column(row, {"id_column": column}, key)
    return text_at(row, column, value, "user", "refuse").strip()


def _tolerance(row: Row, column: str, key: str) -> str | None:
    """Return the absolute error that a row allows; None if it allows none.

    Some rows give one for each value of the answer (`1e-1,1e-2`). Then all values get the smallest,
    so that no wrong value is right.
    """
    found, value = value_at(row.values, column)
    if not found:
        raise no_column(row, {"tolerance_column": column}, key)
    if is_unanswered(value):
        return None
    text = value if isinstance(value, str) else number_text(value)
    try:
        allowed = [Fraction(part.strip()) for part in str(text).split(",")]
    except (ValueError, ZeroDivisionError):
        allowed = []
    if not allowed or min(allowed) < 0:
        raise DataError(
            f"{row.place}: tolerance {shortened(value)} in column {column!r} must be a number that "
            f"is not negative; correct it or leave {key}.tolerance_column out"
        )
    return str(min(allowed))


def _difficulty(row: Row, column: str, key: str) -> float:
    found, value = value_at(row.values, column)
    if not found:
        raise no_column(row, {"difficulty_column": column}, key)
    try:
        number = float(str(value))
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise DataError(
            f"{row.place}: difficulty {shortened(value)} in column {column!r} must "
            "be a number; correct it or leave data.*.difficulty_column out"
        )
    return number
