"""Tokens, accuracy and reflections of a reasoner after GRPO, GRPO + length and REA-RL.

    python benchmarks/reflection_table.py --out runs/rea                  one run after the other
    python benchmarks/reflection_table.py --out runs/rea --devices 0,1 --per-device 2 \\
        learner.gpus_per_rank=0.3 generation.gpus_per_engine=0.2 \\
        environment.revision.reader_generation.gpus_per_engine=0.1
    python benchmarks/reflection_table.py --out runs/rea --report         only from what is there

Every run is `rlsys train CONFIG` (configs/rearl_tiny.yaml, or --config) with the same seeds,
problems and steps and the words of its method. Runs that are finished are not run again. The
Markdown table is of held-out problems after the last step: means over seeds with 95 % t intervals.
Accuracy and thought tokens are under the largest budget; `cut` is the accuracy if those responses
are cut to the next smaller budget afterwards, `under` if the thoughts are ended there and answered.
`hard` problems are those of the largest difficulty. table.png draws the same over the steps.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import TYPE_CHECKING

import numpy as np
from scipy import stats

from rlsys.orchestration.metrics_sink import METRICS, Evaluation, read_evaluations

CONFIG = "configs/rearl_tiny.yaml"
ORIGINALS, NO_REWARD = "environment.revision=null", "algorithm.reflection=null"
METHODS = {
    "GRPO": (ORIGINALS, NO_REWARD, "algorithm.length=none"),
    "GRPO + length": (ORIGINALS, NO_REWARD, "algorithm.length=length"),
    "REA-RL without model": (ORIGINALS,),
    "REA-RL without reward": (NO_REWARD, "algorithm.length=length"),
    "REA-RL": (),
}
REVISION = "environment.revision."
"""Words that a method without revisions has no place for."""

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Runs = dict[str, list[list[Evaluation]]]
"""Method to the evaluations of every seed, as far as all of them came."""
Column = Callable[[Evaluation], float]


def main() -> None:
    """Run what is missing, then print and write the table."""
    arguments = parse()
    if not arguments.report:
        devices: Queue[str | None] = Queue()
        for device in (arguments.devices or [None]) * arguments.per_device:
            devices.put(device)
        jobs = [(method, seed) for method in arguments.methods for seed in arguments.seeds]
        with ThreadPoolExecutor(devices.qsize()) as pool:
            list(pool.map(lambda job: run(*job, arguments, devices), jobs))
    found = read_runs(arguments)
    text = table(found)
    print(text)
    (arguments.out / "table.md").write_text(text)
    numbers = {
        method: [[e.numbers | {"step": e.step} for e in run] for run in runs]
        for method, runs in found.items()
    }
    (arguments.out / "table.json").write_text(json.dumps(numbers, indent=1))
    draw(found).savefig(arguments.out / "table.png", dpi=120)


def read_runs(arguments: argparse.Namespace) -> Runs:
    """The evaluations of all runs, each up to the step that every run has reached."""
    found: Runs = {}
    for method in arguments.methods:
        folders = [folder(arguments.out, method, seed) for seed in arguments.seeds]
        found[method] = [read_evaluations(path / METRICS) for path in folders]
    last = min(run[-1].step for runs in found.values() for run in runs)
    return {m: [[e for e in run if e.step <= last] for run in runs] for m, runs in found.items()}


def parse() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--config", default=CONFIG)
    parser.add_argument("--seeds", type=lambda t: [int(s) for s in t.split(",")], default=[0, 1, 2])
    parser.add_argument("--methods", type=lambda t: t.split(","), default=list(METHODS))
    parser.add_argument("--devices", type=lambda t: t.split(","), help="CUDA devices to use")
    parser.add_argument("--per-device", type=int, default=1, help="runs at once on each device")
    parser.add_argument("--report", action="store_true", help="run nothing")
    parser.add_argument("overrides", nargs="*", help="key.path=value for every run")
    return parser.parse_intermixed_args()


def folder(out: Path, method: str, seed: int) -> Path:
    """Run directory of one method and seed."""
    return out / f"{method.replace(' + ', '-').replace(' ', '-').lower()}-{seed}"


def run(method: str, seed: int, arguments: argparse.Namespace, devices: Queue[str | None]) -> None:
    """Train once, unless it is done; the log is beside the run directory."""
    run_dir = folder(arguments.out, method, seed)
    if (run_dir / "export").is_dir():
        return
    device = devices.get()
    environment = os.environ | ({} if device is None else {"CUDA_VISIBLE_DEVICES": device})
    run_dir.parent.mkdir(parents=True, exist_ok=True)
    words = METHODS[method]
    more = [w for w in arguments.overrides if ORIGINALS not in words or not w.startswith(REVISION)]
    command = [
        *(sys.executable, "-m", "rlsys", "train", arguments.config),
        *(f"run_dir={run_dir}", f"seed={seed}", "checkpoint.every=0"),
        *(*words, *more),
    ]
    try:
        with Path(f"{run_dir}.log").open("w") as log:
            subprocess.run(command, env=environment, stdout=log, stderr=log, check=True)
    finally:
        devices.put(device)


def columns(example: Evaluation) -> dict[str, Column]:
    """What is told of an evaluation, under the names of the table."""
    *_, smaller, largest = example.accuracy
    difficulties = [n.split("_")[1] for n in example.numbers if n.startswith("accuracy/difficulty")]
    hard = f"difficulty_{max(difficulties, key=int)}"
    return {
        "accuracy": lambda e: e.accuracy[largest],
        f"under {smaller}": lambda e: e.accuracy[smaller],
        f"cut to {smaller}": lambda e: e.numbers[f"cut/{smaller}"],
        "thought tokens": lambda e: e.thought_length,
        "token ratio, %": lambda e: e.numbers["token_ratio"],
        "reflections per 100 tokens": lambda e: 100 * e.numbers["reflections/per_token"],
        "hard: accuracy": lambda e: e.numbers[f"accuracy/{hard}"],
        "hard: reflections per 100 tokens": lambda e: (
            100 * e.numbers[f"reflections/per_token/{hard}"]
        ),
    }


def table(found: Runs) -> str:
    """One row per method, the warm start first."""
    starts = [run[0] for runs in found.values() for run in runs]
    told = columns(starts[0])
    steps = next(iter(found.values()))[0][-1].step
    lines = [f"| after {steps} steps | {' | '.join(told)} |"]
    lines.append(f"|---|{'---|' * len(told)}")
    rows = {"warm start": starts} | {m: [run[-1] for run in runs] for m, runs in found.items()}
    for name, evaluations in rows.items():
        cells = (mean_and_interval([of(e) for e in evaluations]) for of in told.values())
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def draw(found: Runs) -> Figure:
    """Accuracy, tokens and reflections over the steps: means and ranges over seeds."""
    from matplotlib.figure import Figure

    told = columns(next(iter(found.values()))[0][0])
    names = ("accuracy", "token ratio, %", "hard: reflections per 100 tokens")
    figure = Figure(figsize=(12, 4), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(names)), names, strict=True):
        for method, runs in found.items():
            steps = [e.step for e in runs[0]]
            values_SE = np.array([[told[name](e) for e in run] for run in runs])
            axes.plot(steps, values_SE.mean(axis=0), label=method)
            axes.fill_between(steps, values_SE.min(axis=0), values_SE.max(axis=0), alpha=0.15)
        axes.set(xlabel="step", title=name)
        axes.grid(alpha=0.3)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=len(found))
    return figure


def mean_and_interval(values: list[float]) -> str:
    """Mean and half width of its 95 % t interval."""
    if len(values) == 1:
        return f"{values[0]:.3g}"
    half = stats.sem(values) * stats.t.ppf(0.975, len(values) - 1)
    return f"{np.mean(values):.3g} ± {half:.2g}"


if __name__ == "__main__":
    main()
