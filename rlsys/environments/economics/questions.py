"""The corpus: questions with gold answers, by type; one read-only copy per process."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from rlsys.data.answers import clean_gold, extract_answer, is_refused, normalise
from rlsys.data.arithmetic import arithmetic_problem, draw_texts
from rlsys.environments.economics.config import ArithmeticCorpus, DatasetsCorpus, Table
from rlsys.errors import DataError


class Question(NamedTuple):
    """One question and the answer it is graded against."""

    id: str
    text: str
    gold: str
    type: str


@dataclass(frozen=True, slots=True)
class Corpus:
    """Questions by type, and where they come from."""

    by_type: Mapping[str, tuple[Question, ...]]
    source: str
    """What clients see in `data_source`: a generator, or data sets with the rows read."""
    skipped: int = 0
    """Rows dropped: of a type not asked for, or without a gold answer that can be compared."""

    def __len__(self) -> int:
        """Questions in all."""
        return sum(map(len, self.by_type.values()))


@lru_cache(maxsize=4)
def load_corpus(config: ArithmeticCorpus | DatasetsCorpus) -> Corpus:
    """Return the corpus; every session of a process that asks for the same gets the same one.

    Raises DataError for what cannot be loaded; nothing else is ever put in its place.
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
        for question in _questions(table, _rows(table, config.prod)):
            if question is None:
                skipped += 1
            else:
                questions.setdefault(question.type, []).append(question)
    names = [table.name + _window(table, config.prod) for table in config.tables]
    if not questions:
        raise DataError(
            f"{' and '.join(names)} hold no question with a gold answer ({skipped} rows passed "
            "over); check the columns and types under corpus.tables"
        )
    # Sorted, so that the order of the rows does not decide what a seed means.
    by_type = {kind: tuple(questions[kind]) for kind in sorted(questions)}
    return Corpus(by_type, " + ".join(names), skipped)


def _window(table: Table, prod: bool) -> str:
    return "" if prod else f"[{table.window[0]}:{table.window[1]}]"


def _rows(table: Table, prod: bool) -> Iterable[Mapping[str, Any]]:
    import datasets

    split = table.split + _window(table, prod)
    try:
        if table.path:
            suffix = table.path[0].name.removesuffix(".gz").rpartition(".")[2]
            builder = "parquet" if suffix == "parquet" else "json"
            files = {table.split: [str(path) for path in table.path]}
            rows = datasets.load_dataset(builder, data_files=files, split=split)
        else:
            rows = datasets.load_dataset(table.name, table.subset, split=split)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise DataError(
            f"data set {table.name!r}, split {split!r}, cannot be loaded ({reason}); check "
            "corpus.tables and the network, or choose corpus.source=arithmetic"
        ) from error
    named = (table.question, table.solution, table.answer, table.type)
    columns = [column for column in named if column is not None]
    for column in columns:
        if column not in rows.column_names:
            raise DataError(
                f"data set {table.name!r} has no column {column!r} among "
                f"{', '.join(rows.column_names)}; name the right one under corpus.tables"
            )
    selected: Iterable[Mapping[str, Any]] = rows.select_columns(columns)
    return selected


def _questions(table: Table, rows: Iterable[Mapping[str, Any]]) -> Iterator[Question | None]:
    """Yield a question per row, None for a row passed over."""
    for number, row in enumerate(rows):
        kind = row[table.type] if table.type else table.types[0]
        text = row[table.question]
        if kind not in table.types or not isinstance(text, str) or not text.strip():
            yield None
            continue
        gold = _gold(table, row)
        yield Question(f"{table.name}_{number}", text.strip(), gold, kind) if gold else None


def _gold(table: Table, row: Mapping[str, Any]) -> str:
    """The gold answer of a row, empty if it has none that can be compared."""
    if table.answer is not None:
        answer = row[table.answer]
        # Columns of numbers may be such, and not texts.
        number = isinstance(answer, int | float) and not isinstance(answer, bool)
        plain = isinstance(answer, str) or (number and math.isfinite(answer))
        return _comparable(clean_gold(str(answer))) if plain else ""
    assert table.solution is not None
    solution = row[table.solution]
    return solution_gold(solution) if isinstance(solution, str) else ""


def solution_gold(solution: str) -> str:
    r"""Return the final answer of a worked solution, empty if it states none that can be compared.

    `The answer is: 240` and `#### 240` come before a box, for a box may hold a step on the way.

    Example: solution_gold(r"... #### 240" + "\nThe answer is: 240") is "240"
    """
    _, mark, tail = solution.rpartition("The answer is:")
    if not mark:
        _, mark, tail = solution.rpartition("####")
    gold = clean_gold(tail.strip().partition("\n")[0]) if mark else extract_answer(solution)
    return "" if gold is None else _comparable(gold)


def _comparable(gold: str) -> str:
    return "" if is_refused(normalise(gold)) else gold
