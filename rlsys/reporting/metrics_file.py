"""Numbers of a run on disk: metrics.jsonl, one JSON object a row.

    {"step": 3, "time": 1764288000.5, "score/mean": 0.53, "loss": -0.01, ...}
    {"step": 3, "time": 1764288002.1, "evaluation/16": 0.41, "evaluation/mean": 0.55, ...}

A run resumed at step N drops the rows after N: the steps they tell of are trained again.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from rlsys.errors import ConfigError
from rlsys.training.durable import naming, replace_file

METRICS = "metrics.jsonl"
EVALUATION = "evaluation/"
THOUGHT_LENGTH = "thought/length"
RESPONSE_LENGTH = "response/length"
TOKEN_RATIO = "token_ratio"


class EvaluationRecord(NamedTuple):
    """The means of one evaluation.

    Example: EvaluationRecord(step=60, numbers={"16": 0.83, "64": 0.88, "thought/length": 16})
    """

    step: int
    numbers: dict[str, float]

    @property
    def accuracy(self) -> dict[int, float]:
        """Budget to accuracy: the anytime curve; empty where there are no budgets."""
        return {int(name): v for name, v in self.numbers.items() if name.isdecimal()}

    @property
    def thought_length(self) -> float:
        """Mean thought length in tokens of an anytime evaluation."""
        return self.numbers[THOUGHT_LENGTH]


class MetricsSink:
    """Appends rows to `run_dir`/metrics.jsonl; a row survives a kill or a power cut."""

    def __init__(self, run_dir: Path, resumed_step: int = 0) -> None:
        self._path = run_dir / METRICS
        with naming(self._path):
            run_dir.mkdir(parents=True, exist_ok=True)
            drop_rows_after(self._path, resumed_step)
            self._file = self._path.open("a", encoding="utf-8")

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append one row; numbers that are not finite become null, which JSON can hold."""
        finite = {k: float(v) if math.isfinite(v) else None for k, v in metrics.items()}
        row = {"step": step, "time": round(time.time(), 3), **finite}
        with naming(self._path):
            self._file.write(json.dumps(row) + "\n")
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        # Every row is on the disk. What is left is one that a full disk refused, and its error has
        # been raised already.
        with suppress(OSError):
            self._file.close()


def drop_rows_after(path: Path, step: int) -> None:
    """Keep the rows up to `step` (none for 0: the run starts anew), and no half-written one."""
    kept = [row for row in read_rows(path) if row["step"] <= step] if step else []
    replace_file(path, "".join(f"{json.dumps(row)}\n" for row in kept))


def read_rows(path: Path) -> list[dict[str, Any]]:
    """All whole rows of a metrics file, none if there is no file."""
    # A disk that fails may leave anything in a line; such a line is left out.
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    lines = text.split("\n")
    return [row for line in lines if (row := _parse(line)) is not None]


def read_evaluations(path: Path) -> list[EvaluationRecord]:
    """The evaluations a metrics file tells of, in the order they were written."""
    found = []
    for row in read_rows(path):
        numbers = {
            k.removeprefix(EVALUATION): v for k, v in row.items() if k.startswith(EVALUATION)
        }
        if numbers:
            found.append(EvaluationRecord(row["step"], numbers))
    return found


def read_reference(run_dir: Path | None) -> EvaluationRecord | None:
    """The first evaluation that a folder holds; None without a folder.

    Raises ConfigError if the folder holds none of thoughts.
    """
    if run_dir is None:
        return None
    found = [e for e in read_evaluations(run_dir / METRICS) if THOUGHT_LENGTH in e.numbers]
    if not found:
        raise ConfigError(
            f"evaluation.reference {str(run_dir)!r} holds no evaluation of thoughts in {METRICS}; "
            "name the folder of a training run, or RUN_DIR/evaluation of rlsys eval"
        )
    return found[0]


def length_ratios(numbers: Mapping[str, float], reference: Mapping[str, float]) -> dict[str, float]:
    """Return lengths in percent of the reference's: thoughts, whole responses, by difficulty.

    Example: length_ratios({"thought/length": 30}, {"thought/length": 40}) == {"token_ratio": 75.0}
    """
    names = {THOUGHT_LENGTH: TOKEN_RATIO, RESPONSE_LENGTH: f"{TOKEN_RATIO}/response"}
    by_difficulty = f"{THOUGHT_LENGTH}/"
    names |= {
        name: f"{TOKEN_RATIO}/{name.removeprefix(by_difficulty)}"
        for name in numbers
        if name.startswith(by_difficulty)
    }
    return {
        ratio: 100.0 * numbers[name] / reference[name]
        for name, ratio in names.items()
        if name in numbers and reference.get(name)
    }


def _parse(line: str) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (json.JSONDecodeError, RecursionError):  # the process was killed while it wrote this
        return None
    return row if isinstance(row, dict) and isinstance(row.get("step"), int) else None
