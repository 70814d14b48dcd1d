"""What an evaluation leaves behind: one row per sampled thought, appended when it is answered.

results.jsonl is the raw evidence. Every table and every curve is computed from it alone.
evaluation.yaml holds the settings that its rows were sampled with. Its name differs from that of a
training run's settings, so that an evaluation in the directory of a run overwrites nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Final

import msgspec

from rlsys.config.evaluation_sets import SetsConfig
from rlsys.config.reading import read_tree
from rlsys.errors import ConfigError, DataError, RunFolderError
from rlsys.types import Problem

RESULTS: Final = "results.jsonl"
CONFIG: Final = "evaluation.yaml"
SUMMARY: Final = "summary.json"

FREE_KEYS: Final = ("run_dir", "endpoint", "generation", "baseline", "data.sets", "grading.actors")
"""Keys that may change before an evaluation goes on: they do not change what a row says. Sets are
compared one by one."""
FREE_SET_KEYS: Final = ("samples", "limit", "size")
"""Keys of a set that only say how many rows there are."""


class BudgetAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a thought under one budget."""

    budget: int
    score: float
    """1 if the answer is right, else 0."""
    invalid: bool
    """True if the grader failed or was too slow, so that nobody knows whether it is right."""
    cut: int
    """Thought tokens kept: at most `budget`."""
    forced: bool
    """True if the thought was cut at the budget; False if it had ended by itself."""
    tokens: int
    """Sampled tokens of the answer."""
    answer: str | None
    """The text in the box; None without a box."""


class SampleResult(msgspec.Struct, frozen=True, kw_only=True):
    """One sampled thought and its answers under all budgets.

    Budgets at and after the end of the thought share its cut; each has an answer of its own.
    """

    id: str
    """Set, problem and sample; see `result_id`."""
    set: str
    problem: str
    digest: str
    """Of the text and gold answer, so that results of changed problems are never mixed."""
    weights: str
    """The same of the weights; see rlsys.evaluation.preparation.weights_digest."""
    sample: int
    seed: int
    """From which the seeds of the thought and of the answers are derived."""
    thought_tokens: int
    closed: bool
    """True if the model ended the thought itself."""
    answers: tuple[BudgetAnswer, ...]


def result_id(name: str, problem: str, sample: int) -> str:
    """Return the id of a row: result_id("aime24", "row-7", 3) == "aime24/row-7/3"."""
    return f"{name}/{problem}/{sample}"


def digest_of(problem: Problem) -> str:
    """Return eight hexadecimal digits that change when the question or the gold answer does."""
    return sha256(f"{problem.text}\x00{problem.answer}".encode()).hexdigest()[:8]


def read_results(folder: Path) -> list[SampleResult]:
    """Return all rows of an evaluation; a last line that a kill cut off is left out.

    Raises:
        RunFolderError: the folder holds no results.
        DataError: a row is not one of this file.
    """
    path = folder / RESULTS
    if not path.is_file():
        raise RunFolderError(f"{folder} holds no {RESULTS}; give the run_dir of `rlsys eval sets`")
    # Bytes and not text: a killed process may have stopped inside a UTF-8 character.
    whole, _, _ = path.read_bytes().rpartition(b"\n")
    return list(_rows(path, whole.split(b"\n")))


def _rows(path: Path, lines: Iterable[bytes]) -> Iterator[SampleResult]:
    decoder = msgspec.json.Decoder(SampleResult)
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise DataError(
                f"{path}, line {number}: no row of an evaluation ({error}); delete the line, and "
                "the same command samples it again"
            ) from None


def claim(config: SetsConfig, text: str) -> None:
    """Write the configuration `text` into `config.run_dir`, or compare with the one that is there.

    Rows that were sampled with other settings must not be mixed with new ones.

    Raises ConfigError with the first key that differs.
    """
    path = config.run_dir / CONFIG
    if path.is_file() and (config.run_dir / RESULTS).is_file():
        for key, before, now in differences(read_tree(path), config.model_dump(mode="json")):
            raise ConfigError(
                f"{key} is {now!r} but the results in {config.run_dir} were sampled with "
                f"{before!r}; set it back, or give another run_dir"
            )
    config.run_dir.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def differences(
    before: dict[str, object], now: dict[str, object], prefix: str = ""
) -> Iterator[tuple[str, object, object]]:
    """Yield key, old and new value of every setting that changes what a row says.

    A set that only one of the two has is no difference.
    """
    for name in {**now, **before}:
        key, old, new = f"{prefix}{name}", before.get(name), now.get(name)
        if key == "data.sets" and isinstance(old, dict) and isinstance(new, dict):
            for shared in old.keys() & new.keys():
                free = dict.fromkeys(FREE_SET_KEYS)
                yield from differences(old[shared] | free, new[shared] | free, f"{key}.{shared}.")
        elif key in FREE_KEYS:
            continue
        elif isinstance(old, dict) and isinstance(new, dict):
            yield from differences(old, new, f"{key}.")
        elif old != new:
            yield key, old, new
