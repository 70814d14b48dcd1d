"""The corpus: questions with gold answers by type. A process keeps one read-only copy."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from rlsys.config.economics import ArithmeticCorpus, DatasetsCorpus, Table
from rlsys.data.arithmetic import arithmetic_problem, draw_texts
from rlsys.errors import DataError
from rlsys.grading.answers import clean_gold, extract_answer
from rlsys.grading.refusals import is_refused
from rlsys.grading.spelling import normalise

_log = logging.getLogger(__name__)

Row = Mapping[str, object]
"""One row of a data set: column name to value."""


class Question(NamedTuple):
    """One question and its gold answer."""

    id: str
    text: str
    gold: str
    type: str


@dataclass(frozen=True, slots=True)
class Corpus:
    """Questions by type, and their source."""

    by_type: Mapping[str, tuple[Question, ...]]
    source: str
    """Sent to clients as `data_source`: the generator, or the data sets and the rows read."""
    skipped: int = 0
    """Rows dropped: another type, or no usable question or gold answer."""

    def __len__(self) -> int:
        """Number of questions."""
        return sum(map(len, self.by_type.values()))


@lru_cache(maxsize=4)
def load_corpus(config: ArithmeticCorpus | DatasetsCorpus) -> Corpus:
    """Return the corpus; equal settings give the same object within a process.

    Raises DataError if a part cannot be loaded. No other questions are ever substituted.
    """
    match config:
        case ArithmeticCorpus():
            return _arithmetic(config)
        case DatasetsCorpus():
            return _datasets(config)


def _arithmetic(config: ArithmeticCorpus) -> Corpus:
    by_type: dict[str, tuple[Question, ...]] = {}
    low, high = config.terms
    for terms in range(low, high + 1):
        rng = np.random.default_rng([config.seed, terms])
        kind = f"arithmetic_{terms}"
        texts = draw_texts(rng, (terms, terms), config.held_out, config.per_type)
        by_type[kind] = tuple(
            Question(f"{kind}_{i}", text, arithmetic_problem(text, "").answer, kind)
            for i, text in enumerate(texts)
        )
    side = "held out" if config.held_out else "training"
    return Corpus(by_type, f"generated arithmetic, seed {config.seed}, {side} side")


def _datasets(config: DatasetsCorpus) -> Corpus:
    questions: dict[str, list[Question]] = {}
    skipped = 0
    for table in config.tables:
        taken, dropped = _read(table, config.prod)
        skipped += dropped
        for question in taken:
            questions.setdefault(question.type, []).append(question)
    names = [table.name + _window(table, config.prod) for table in config.tables]
    # Sorted, so that a seed gives the same episode whatever the order of the rows is.
    by_type = {kind: tuple(questions[kind]) for kind in sorted(questions)}
    return Corpus(by_type, " + ".join(names), skipped)


def _read(table: Table, prod: bool) -> tuple[list[Question], int]:
    """The questions of a table and the number of skipped rows, which is also logged.

    Raises DataError if no question is left, because `source` would then name an unused table.
    """
    rows = list(_questions(table, _rows(table, prod)))
    taken = [question for question in rows if question is not None]
    skipped = len(rows) - len(taken)
    source = f"data set {table.name!r}, split {table.split + _window(table, prod)!r}"
    columns = ", ".join(map(repr, _columns(table)))
    if not taken:
        raise DataError(
            f"{source}, holds no question of types {', '.join(table.types)} with a gold answer in "
            f"its columns {columns} ({skipped} rows skipped); name the right columns and types "
            "under corpus.tables"
        )
    if skipped:
        _log.warning(
            "%s: %d of %d rows skipped, of other types or without a question or a gold answer in "
            "columns %s",
            *(source, skipped, len(rows), columns),
        )
    found = {question.type for question in taken}
    if missing := [kind for kind in table.types if kind not in found]:
        _log.warning("%s: no question of types %s", source, ", ".join(missing))
    return taken, skipped


def _columns(table: Table) -> list[str]:
    """The columns to read."""
    named = (table.question, table.solution, table.answer, table.type)
    return [column for column in named if column is not None]


def _window(table: Table, prod: bool) -> str:
    return "" if prod else f"[{table.window[0]}:{table.window[1]}]"


def _rows(table: Table, prod: bool) -> Iterable[Row]:
    import datasets
    from datasets.exceptions import DatasetsError

    split = table.split + _window(table, prod)
    try:
        if table.path:
            suffix = table.path[0].name.removesuffix(".gz").rpartition(".")[2]
            builder = "parquet" if suffix == "parquet" else "json"
            files = {table.split: [str(path) for path in table.path]}
            rows = datasets.load_dataset(builder, data_files=files, split=split)
        else:
            rows = datasets.load_dataset(table.name, table.subset, split=split)
    # StopIteration: a file is empty. EOFError: a compressed file ends early.
    except (OSError, ValueError, StopIteration, EOFError, DatasetsError) as error:
        paths = ", ".join(map(str, table.path))
        remedy = f"that {paths} holds JSONL, JSON or Parquet" if paths else "the network"
        raise DataError(
            f"data set {table.name!r}, split {split!r}, cannot be loaded ({_reason(error)}); check "
            f"corpus.tables and {remedy}, or choose corpus.source=arithmetic"
        ) from error
    columns = _columns(table)
    for column in columns:
        if column not in rows.column_names:
            raise DataError(
                f"data set {table.name!r} has no column {column!r} among "
                f"{', '.join(rows.column_names)}; name the right one under corpus.tables"
            )
    selected: Iterable[Row] = rows.select_columns(columns)
    return selected


def _reason(error: Exception) -> str:
    """The first line of the error and of its cause, where datasets often hides the real reason."""
    if isinstance(error, StopIteration):
        return "a file is empty"
    faults = [error] if error.__cause__ is None else [error, error.__cause__]
    words = [str(fault).strip().partition("\n")[0] for fault in faults]
    return ": ".join(filter(None, words)) or type(error).__name__


def _questions(table: Table, rows: Iterable[Row]) -> Iterator[Question | None]:
    """Yield one question per row, or None for a skipped row."""
    for number, row in enumerate(rows):
        kind = str(row[table.type]) if table.type else table.types[0]
        text = row[table.question]
        if kind not in table.types or not isinstance(text, str) or not text.strip():
            yield None
            continue
        gold = _gold(table, row)
        yield Question(f"{table.name}_{number}", text.strip(), gold, kind) if gold else None


def _gold(table: Table, row: Row) -> str:
    """The gold answer of a row; empty if there is none that can be compared."""
    if table.answer is not None:
        answer = row[table.answer]
        # A column of numbers holds int or float (NaN where empty), not texts.
        plain = isinstance(answer, str) or (
            isinstance(answer, int | float)
            and not isinstance(answer, bool)
            and math.isfinite(answer)
        )
        return _comparable(clean_gold(str(answer))) if plain else ""
    assert table.solution is not None
    solution = row[table.solution]
    return solution_gold(solution) if isinstance(solution, str) else ""


def solution_gold(solution: str) -> str:
    r"""Return the final answer of a worked solution; empty if there is none that can be compared.

    `The answer is: 240` and `#### 240` are preferred to a box, which may hold an intermediate step.

    Example: solution_gold(r"... #### 240" + "\nThe answer is: 240") is "240"
    """
    _, mark, tail = solution.rpartition("The answer is:")
    if not mark:
        _, mark, tail = solution.rpartition("####")
    gold = clean_gold(tail.strip().partition("\n")[0]) if mark else extract_answer(solution)
    return "" if gold is None else _comparable(gold)


def _comparable(gold: str) -> str:
    return "" if is_refused(normalise(gold)) else gold
