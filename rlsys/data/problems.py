"""Problems: where they come from, and the endless shuffled stream a run draws them from.

Files are read strictly: the first malformed row is refused with its file and line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from rlsys.config import ArithmeticData, FileData, HubData
from rlsys.data.row_files import iterate_rows
from rlsys.errors import DataError
from rlsys.grading.answers import clean_gold
from rlsys.types import Problem

TaskT = TypeVar("TaskT")


class Row(NamedTuple):
    """One row of a data set, and where it stands: `svamp.jsonl, line 7`."""

    place: str
    values: Mapping[str, Any]


def load_problems(source: ArithmeticData | FileData | HubData) -> list[Problem]:
    """Return the problems of a source in its own order, gold answers cleaned.

    Raises DataError, with file and line, for whatever is missing, empty or malformed.
    """
    match source:
        case ArithmeticData():
            from rlsys.data.arithmetic import arithmetic_problems

            return arithmetic_problems(source)
        case FileData():
            return _problems(_file_rows(source.path), source, ", ".join(map(str, source.path)))
        case HubData():
            return _problems(_hub_rows(source), source, f"data set {source.name!r}")


def read_rows(paths: Sequence[Path], columns: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield the texts of `columns` of every row of the files, in order, as they are written.

    Space around a text stays: a response that follows a prefill may have to begin with it.

    Raises DataError, with file and line, for a missing file, a malformed row or an empty text.
    """
    for row in _file_rows(paths):
        yield tuple(_whole_text(row, column) for column in columns)


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


def _file_rows(paths: Sequence[Path]) -> Iterator[Row]:
    for path in paths:
        for line, values in iterate_rows(path):
            yield Row(f"{path}, line {line}", values)


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
    for number, values in enumerate(rows, 1):
        yield Row(f"{name}, split {source.split!r}, row {number}", values)


def _problems(rows: Iterable[Row], source: FileData | HubData, name: str) -> list[Problem]:
    stop = None if source.limit is None else source.offset + source.limit
    problems = [
        _problem(number, row, source)
        for number, row in enumerate(islice(rows, source.offset, stop), source.offset)
    ]
    if not problems:
        raise DataError(
            f"{name} has no row after the first {source.offset}; lower data.*.offset"
            if source.offset
            else f"{name} is empty; name a file or split with at least one row"
        )
    if source.id_column is not None:
        _refuse_repeated_ids(problems, source.id_column, name)
    return problems


def _problem(number: int, row: Row, source: FileData | HubData) -> Problem:
    answer = _text(row, source.answer_column)
    gold = clean_gold(answer)
    if not gold:
        raise DataError(
            f"{row.place}: column {source.answer_column!r} {answer!r} holds no answer to compare "
            "with; remove the row or name another data.*.answer_column"
        )
    return Problem(
        id=f"row-{number}" if source.id_column is None else _text(row, source.id_column),
        text=_text(row, source.problem_column),
        answer=gold,
        difficulty=None if source.difficulty_column is None else _number(row, source),
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


def _value(row: Row, column: str) -> Any:
    if column not in row.values:
        raise DataError(
            f"{row.place}: no column {column!r} among {', '.join(row.values)}; "
            "name the right one under data"
        )
    return row.values[column]


def _text(row: Row, column: str) -> str:
    """Return a text, or a number as text, without the space around it."""
    return _whole_text(row, column).strip()


def _whole_text(row: Row, column: str) -> str:
    """Return a text, or a number as text; refuse what has nothing but space."""
    value = _value(row, column)
    if isinstance(value, str) and value.strip():
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    raise DataError(
        f"{row.place}: column {column!r} must hold a text or a number, not {_shown(value)}; "
        "correct or remove the row"
    )


def _number(row: Row, source: FileData | HubData) -> float:
    assert source.difficulty_column is not None
    value = _value(row, source.difficulty_column)
    try:
        return float(value)
    except (TypeError, ValueError):
        raise DataError(
            f"{row.place}: difficulty {_shown(value)} in column {source.difficulty_column!r} must "
            "be a number; correct it or leave data.*.difficulty_column out"
        ) from None


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
