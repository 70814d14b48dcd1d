"""What `rlsys data` tells of a source: files, columns, lengths and golds, by the one loader."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

import numpy as np

from rlsys.config import FileData, HubData
from rlsys.data.cells import Row, value_at
from rlsys.data.columns import guess_column, setting_word
from rlsys.data.locations import find_files
from rlsys.data.problems import source_rows
from rlsys.grading.compare import LOCAL_TIMEOUT_S
from rlsys.grading.exact import as_number
from rlsys.grading.golds import read_gold
from rlsys.grading.phrases import is_phrase
from rlsys.grading.process import GradingProcess
from rlsys.grading.refusals import is_refused
from rlsys.grading.spelling import normalise
from rlsys.types import Problem

_MOST_PARSED: Final = 500
"""Different golds that math-verify is asked about, a few milliseconds each."""
MOST_MEASURED: Final = 2000
"""Problems whose length in tokens is measured, evenly spread."""


def first_row(source: FileData | HubData) -> Row | None:
    """Return the first row of a source, None if there is none. Raises DataError as the loader."""
    return next(islice(source_rows(source), source.offset, None), None)


def guessed_columns(source: FileData | HubData, values: Mapping[str, Any]) -> dict[str, str]:
    """Return setting to likely column, for the columns of `source` that a row does not have."""
    guesses = {}
    for setting in ("problem_column", "answer_column"):
        if not value_at(values, getattr(source, setting))[0]:
            guess = guess_column(values, setting)
            if guess is not None:
                guesses[setting] = guess
    return guesses


def described_files(source: FileData | HubData) -> list[str]:
    """Return a line per kind of file: what it is, how many there are and the first one's name."""
    if isinstance(source, HubData):
        return [f"Hugging Face data set {source.name}, split {source.split}"]
    files = [file for path in source.path for file in find_files(path)]
    first = {file.kind: file.shown for file in reversed(files)}
    counts = Counter(file.kind for file in files)
    return [
        f"{kind}: {first[kind]}" + f" and {count - 1} more" * (count > 1)
        for kind, count in counts.items()
    ]


class GoldReport(NamedTuple):
    """What the golds of problems are, by the checks of rlsys.grading."""

    kinds: dict[str, int]
    """Kind of gold to the number of problems."""
    only_spelling: list[Problem]
    """Problems whose gold is right only in its own spelling: nothing can work out its value."""
    unchecked: int
    """Different golds beyond the first 500 expressions, which were not tried."""


def examine_golds(problems: Sequence[Problem]) -> GoldReport:
    """Sort golds into numbers, words, expressions, several golds, and what cannot be worked out."""
    process = GradingProcess(LOCAL_TIMEOUT_S)
    known: dict[str, bool] = {}
    kinds: Counter[str] = Counter()
    only_spelling, unchecked = [], set()
    for problem in problems:
        golds = read_gold(problem.answer).answers or (problem.answer,)
        kind = "several golds, any of them right" if len(golds) > 1 else _kind(golds[0])
        for gold in (g for g in golds if _kind(g) == _EXPRESSION and g not in known):
            if len(known) < _MOST_PARSED:
                known[gold] = _is_parsed(process, gold)
            else:
                unchecked.add(gold)
        if not all(known.get(gold, True) for gold in golds):
            kind = "only right in its own spelling"
            only_spelling.append(problem)
        kinds[kind] += 1
    process.close()
    return GoldReport(dict(kinds.most_common()), only_spelling, len(unchecked))


_EXPRESSION: Final = "expression, compared by math-verify"


def _kind(gold: str) -> str:
    text = normalise(gold)
    if as_number(text) is not None:
        return "number"
    return "word" if is_phrase(text) else _EXPRESSION


def _is_parsed(process: GradingProcess, gold: str) -> bool:
    """Tell whether math-verify finds a gold equal to itself, which takes that it reads it."""
    return not is_refused(normalise(gold)) and process.reads(gold)


class Lengths(NamedTuple):
    """How long prompts are."""

    median: int
    p90: int
    p99: int
    longest: int
    too_long: int
    """Prompts longer than the limit."""
    measured: int


def measure_lengths(
    problems: Sequence[Problem], length_of: Callable[[Problem], int], limit: int | None = None
) -> Lengths:
    """Measure at most `MOST_MEASURED` problems, evenly spread over all."""
    places = np.linspace(0, len(problems) - 1, min(len(problems), MOST_MEASURED)).astype(int)
    lengths_N = np.array([length_of(problems[place]) for place in places])
    median, p90, p99 = np.percentile(lengths_N, (50, 90, 99)).astype(int).tolist()
    too_long = 0 if limit is None else int((lengths_N > limit).sum())
    return Lengths(median, p90, p99, int(lengths_N.max()), too_long, len(lengths_N))


def training_words(source: FileData | HubData) -> list[str]:
    """Return the `key=value` words, as a shell takes them, that make a run train on this source."""
    words = [setting_word("data.train.source", source.source)]
    if isinstance(source, FileData):
        path = source.path[0] if len(source.path) == 1 else source.path
        words.append(setting_word("data.train.path", path))
    for name, field in type(source).model_fields.items():
        value = getattr(source, name)
        if name not in ("source", "path") and value != field.default:
            words.append(setting_word(f"data.train.{name}", value))
    return words
