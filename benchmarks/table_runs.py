"""Shared by the tables: training runs of several methods and seeds, distributed over devices.

A raw file of `benchmarks/results` has the evaluations of such runs: method -> seeds -> evaluations,
each with its step and its numbers.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import NamedTuple

import numpy as np
from scipy import stats

from rlsys.reporting.metrics_file import METRICS, EvaluationRecord, read_evaluations

Words = Sequence[str]
"""Configuration file and `key.path=value` settings of one method."""
Runs = dict[str, list[list[EvaluationRecord]]]
"""Per method, the evaluations of every seed."""
Of = Callable[[EvaluationRecord], float]
"""Computes one number from an evaluation."""
WARM_START = "warm start"


class Column(NamedTuple):
    """A column of a table: how its number is computed from an evaluation, and how it is printed."""

    of: Of
    form: str = ".3f"


Columns = dict[str, Column]


def parser(description: str) -> argparse.ArgumentParser:
    """Return a parser with the options of every table."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--out", type=Path, required=True)
    made.add_argument("--seeds", type=lambda t: [int(s) for s in t.split(",")], default=[0, 1, 2])
    made.add_argument("--methods", type=lambda t: t.split(","), help="methods to run; default: all")
    made.add_argument("--devices", type=lambda t: t.split(","), help="CUDA devices to use")
    made.add_argument("--per-device", type=int, default=1, help="runs at once on each device")
    made.add_argument("--report", action="store_true", help="start no runs")
    made.add_argument("overrides", nargs="*", help="key.path=value for every run")
    return made


def carry_out(methods: Mapping[str, Words], arguments: argparse.Namespace) -> Runs:
    """Start the missing runs, unless `--report` is given, and read all evaluations.

    The log of each run is beside its directory. A finished run is not started again.
    """
    if not arguments.report:
        devices: Queue[str | None] = Queue()
        for device in (arguments.devices or [None]) * arguments.per_device:
            devices.put(device)

        def run(job: tuple[str, int]) -> None:
            method, seed = job
            _train(folder(arguments.out, method, seed), seed, methods[method], devices)

        with ThreadPoolExecutor(devices.qsize()) as pool:
            list(pool.map(run, [(m, s) for m in methods for s in arguments.seeds]))
    return {
        m: [read_evaluations(folder(arguments.out, m, s) / METRICS) for s in arguments.seeds]
        for m in methods
    }


def folder(out: Path, method: str, seed: int) -> Path:
    """Return the run directory of one method and seed."""
    return out / f"{method.replace(' + ', '-').replace(' ', '-').lower()}-{seed}"


def up_to_common_step(found: Runs) -> Runs:
    """Return the evaluations up to the last step that every run has reached."""
    last = min(run[-1].step for runs in found.values() for run in runs)
    return {m: [[e for e in run if e.step <= last] for run in runs] for m, runs in found.items()}


def write_raw(path: Path, found: Runs) -> None:
    """Write all evaluations as a raw file."""
    tree = {
        m: [[{"step": e.step} | e.numbers for e in run] for run in runs]
        for m, runs in found.items()
    }
    path.write_text(json.dumps(tree, indent=1) + "\n")


def read_raw(path: Path) -> Runs:
    """Return the evaluations of a raw file."""
    tree = json.loads(path.read_text())
    return {
        m: [
            [EvaluationRecord(e["step"], {k: v for k, v in e.items() if k != "step"}) for e in run]
            for run in seeds
        ]
        for m, seeds in tree.items()
    }


def runs(name: str, methods: Sequence[str] | None = None) -> Runs:
    """Return the evaluations of a raw file of `benchmarks/results`, of all methods or of some."""
    found = read_raw(Path(__file__).parent / "results" / name)
    return {m: found[m] for m in methods or found}


def starts(found: Runs, of: Of) -> list[float]:
    """Return the number of the warm start, one value per seed: the mean over the methods.

    All methods of a seed start from one policy and measure it on the same problems. On GPUs their
    figures differ slightly. Each seed counts once, because repeated measurements of one policy are
    not independent runs and would make the interval too narrow.
    """
    return [
        float(np.mean([of(run[0]) for run in seed])) for seed in zip(*found.values(), strict=True)
    ]


def table(found: Runs, columns: Columns, compared: Sequence[tuple[str, str]] = ()) -> str:
    """Return a table with one row per method after its last step; the warm start is first.

    For each pair of `compared`, a further row has the difference between the first method and the
    second, paired by seed. The name WARM_START stands for the start of each run.
    """
    ends = {m: [run[-1] for run in runs] for m, runs in found.items()}
    rows = {WARM_START: [mean_and_interval(starts(found, c.of), c.form) for c in columns.values()]}
    for method, evaluations in ends.items():
        rows[method] = [
            mean_and_interval([c.of(e) for e in evaluations], c.form) for c in columns.values()
        ]
    for method, other in compared:
        before = [run[0] for run in found[method]] if other == WARM_START else ends[other]
        pairs = list(zip(ends[method], before, strict=True))
        rows[f"{method} - {other}"] = [
            mean_and_interval([c.of(a) - c.of(b) for a, b in pairs], f"+{c.form}")
            for c in columns.values()
        ]
    steps = next(iter(ends.values()))[0].step
    return markdown(
        [f"after {steps} steps", *columns], ([name, *cells] for name, cells in rows.items())
    )


def markdown(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table without a final line break."""
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *rows)]
    columns = lines[0].count(" | ") + 1
    return "\n".join([lines[0], f"|{' --- |' * columns}", *lines[1:]])


def mean_and_interval(values: Sequence[float], form: str = ".3g") -> str:
    """Return the mean and half the width of its 95 % t interval; for one value, the value."""
    if len(values) == 1:
        return format(values[0], form)
    half = stats.sem(values) * stats.t.ppf(0.975, len(values) - 1)
    return f"{np.mean(values):{form}} ± {half:{form.removeprefix('+')}}"


def _train(run_dir: Path, seed: int, words: Words, devices: Queue[str | None]) -> None:
    if (run_dir / "export").is_dir():
        return
    device = devices.get()
    environment = os.environ | ({} if device is None else {"CUDA_VISIBLE_DEVICES": device})
    run_dir.parent.mkdir(parents=True, exist_ok=True)
    command = [
        *(sys.executable, "-m", "rlsys", "train"),
        *words,
        *(f"run_dir={run_dir}", f"seed={seed}", "checkpoint.every=0"),
    ]
    try:
        with Path(f"{run_dir}.log").open("w") as log:
            subprocess.run(command, env=environment, stdout=log, stderr=log, check=True)
    finally:
        devices.put(device)
