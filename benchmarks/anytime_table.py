"""Accuracy per budget after training the tiny reasoner with GRPO and with BRPO under three priors.

    python benchmarks/anytime_table.py --out runs/anytime                  one run after the other
    python benchmarks/anytime_table.py --out runs/anytime --devices 0,1,2,3 --per-device 3 \\
        learner.gpus_per_rank=0.3 generation.gpus_per_engine=0.3

Every run is `rlsys train` with the same seeds, problems and steps; only the method differs. Runs
that are finished are not run again. Prints a Markdown table: means over seeds, and a 95 % t
interval of the gain in anytime accuracy (the mean over budgets) on held-out problems.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue

import numpy as np
from scipy import stats

from rlsys.orchestration.metrics_sink import METRICS, Evaluation, read_evaluations

METHODS = {
    "GRPO": "configs/grpo.yaml",
    "BRPO base": "configs/brpo_base.yaml",
    "BRPO linear": "configs/brpo_linear.yaml",
    "BRPO uniform": "configs/demo.yaml",
}


def main() -> None:
    """Run what is missing, then print and write the table."""
    arguments = parse()
    jobs = [(m, s) for m in METHODS for s in arguments.seeds]
    devices: Queue[str | None] = Queue()
    for device in (arguments.devices or [None]) * arguments.per_device:
        devices.put(device)
    with ThreadPoolExecutor(devices.qsize()) as pool:
        list(pool.map(lambda job: run(*job, arguments, devices), jobs))
    found = {m: [curves(folder(arguments.out, m, s)) for s in arguments.seeds] for m in METHODS}
    table = markdown(found)
    print(table)
    (arguments.out / "table.md").write_text(table)
    (arguments.out / "table.json").write_text(json.dumps(numbers(found), indent=2))


def parse() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=lambda t: [int(s) for s in t.split(",")], default=[0, 1, 2])
    parser.add_argument("--devices", type=lambda t: t.split(","), help="CUDA devices to use")
    parser.add_argument("--per-device", type=int, default=1, help="runs at once on each device")
    parser.add_argument("overrides", nargs="*", help="key.path=value for every run")
    return parser.parse_intermixed_args()


def folder(out: Path, method: str, seed: int) -> Path:
    """Run directory of one method and seed."""
    return out / f"{method.replace(' ', '-').lower()}-{seed}"


def run(method: str, seed: int, arguments: argparse.Namespace, devices: Queue[str | None]) -> None:
    """Train once, unless it is done; the log is beside the run directory."""
    run_dir = folder(arguments.out, method, seed)
    if (run_dir / "export").is_dir():
        return
    device = devices.get()
    environment = os.environ | ({} if device is None else {"CUDA_VISIBLE_DEVICES": device})
    run_dir.parent.mkdir(parents=True, exist_ok=True)
    command = [
        *(sys.executable, "-m", "rlsys", "train"),
        METHODS[method],
        f"run_dir={run_dir}",
        f"seed={seed}",
        "checkpoint.every=0",
        *arguments.overrides,
    ]
    try:
        with Path(f"{run_dir}.log").open("w") as log:
            subprocess.run(command, env=environment, stdout=log, stderr=log, check=True)
    finally:
        devices.put(device)


def curves(run_dir: Path) -> tuple[Evaluation, Evaluation]:
    """First and last evaluation of a run."""
    evaluations = read_evaluations(run_dir / METRICS)
    return evaluations[0], evaluations[-1]


def anytime(evaluation: Evaluation) -> float:
    """Mean accuracy over budgets."""
    return float(np.mean(list(evaluation.accuracy.values())))


def interval(values: list[float]) -> float:
    """Half width of the 95 % t interval of the mean."""
    return float(stats.sem(values) * stats.t.ppf(0.975, len(values) - 1))


def numbers(found: dict[str, list[tuple[Evaluation, Evaluation]]]) -> dict[str, object]:
    """Everything the table shows, per run."""
    return {
        method: [
            {"before": before.accuracy, "after": after.accuracy, "length": after.thought_length}
            for before, after in pairs
        ]
        for method, pairs in found.items()
    }


def markdown(found: dict[str, list[tuple[Evaluation, Evaluation]]]) -> str:
    """One row per method, the warm start first."""
    starts = [before for pairs in found.values() for before, _ in pairs]
    budgets = list(starts[0].accuracy)
    lines = [
        f"| | {' | '.join(map(str, budgets))} | anytime | gain over warm start | thought length |",
        f"|---|{'---|' * (len(budgets) + 3)}",
        row("warm start", starts, budgets, ""),
    ]
    for method, pairs in found.items():
        gains = [anytime(after) - anytime(before) for before, after in pairs]
        gain = f"{np.mean(gains):+.3f} ± {interval(gains):.3f}"
        lines.append(row(method, [after for _, after in pairs], budgets, gain))
    return "\n".join(lines) + "\n"


def row(name: str, evaluations: list[Evaluation], budgets: list[int], gain: str) -> str:
    """Means over runs."""
    accuracy = [float(np.mean([e.accuracy[b] for e in evaluations])) for b in budgets]
    length = float(np.mean([e.thought_length for e in evaluations]))
    cells = [*(f"{a:.3f}" for a in accuracy), f"{np.mean(accuracy):.3f}", gain, f"{length:.1f}"]
    return f"| {name} | {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
