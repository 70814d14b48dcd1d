"""Accuracy per budget after training the tiny reasoner with GRPO and with BRPO under three priors.

    python benchmarks/anytime_table.py --out runs/anytime                  one run after the other
    python benchmarks/anytime_table.py --out runs/anytime --devices 0,1,2,3 --per-device 3 \\
        learner.gpus_per_rank=0.3 generation.gpus_per_engine=0.3

    python benchmarks/anytime_table.py --out runs/anytime --report          tables of existing runs

Every run is `rlsys train` with the same seeds, problems and steps; only the method differs. A
finished run is not started again. The script prints three Markdown tables for held-out problems:
accuracy per budget at the last step that all runs have evaluated, and two tables of differences at
every evaluated step, one for the anytime accuracy (the mean over budgets) and one for the accuracy
at the largest budget. Numbers are means over seeds with 95 % t intervals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from rlsys.reporting.metrics_file import EvaluationRecord
from table_runs import (
    Column,
    Of,
    Runs,
    carry_out,
    markdown,
    mean_and_interval,
    parser,
    table,
    up_to_common_step,
    write_raw,
)

METHODS = {
    "GRPO": "configs/grpo.yaml",
    "BRPO base": "configs/brpo_base.yaml",
    "BRPO linear": "configs/demo.yaml",
    "BRPO uniform": "configs/brpo_uniform.yaml",
}
BASELINE = "GRPO"


def main() -> None:
    """Start the missing runs, then print and write the tables."""
    arguments = parser(__doc__.splitlines()[0]).parse_intermixed_args()
    chosen = arguments.methods or METHODS
    found = carry_out({m: [METHODS[m], *arguments.overrides] for m in chosen}, arguments)
    tables = "\n\n".join(
        [
            accuracies(found),
            differences(found, "anytime accuracy", anytime),
            differences(found, "accuracy at the largest budget", at_largest),
        ]
    )
    print(tables)
    (arguments.out / "table.md").write_text(tables)
    write_raw(arguments.out / "table.json", found)


def anytime(evaluation: EvaluationRecord) -> float:
    """Return the mean accuracy over budgets."""
    return float(np.mean(list(evaluation.accuracy.values())))


def accuracy(budget: int, evaluation: EvaluationRecord) -> float:
    """Return the share of right answers under a budget."""
    return evaluation.accuracy[budget]


def at_largest(evaluation: EvaluationRecord) -> float:
    """Return the accuracy under the largest budget."""
    return evaluation.accuracy[max(evaluation.accuracy)]


def accuracies(found: Runs) -> str:
    """Return a table with one row per method at the last common step; the warm start is first."""
    found = up_to_common_step(found)
    budgets = next(iter(found.values()))[0][0].accuracy
    columns = {str(b): Column(partial(accuracy, b)) for b in budgets}
    columns["anytime"] = Column(anytime)
    columns["thought length"] = Column(lambda e: e.thought_length, ".1f")
    return table(found, columns)


def differences(found: Runs, name: str, of: Of) -> str:
    """Return how a number changed since the warm start, and how it differs from the baseline's.

    Differences are paired by seed. A cell is empty if a run has not reached the step.
    """
    curves = {m: [{e.step: of(e) for e in run} for run in runs] for m, runs in found.items()}
    steps = sorted({step for seeds in curves.values() for curve in seeds for step in curve} - {0})
    rows = []
    for method, seeds in curves.items():
        changes = [{step: v - curve[0] for step, v in curve.items()} for curve in seeds]
        rows.append([f"{method}, over its warm start", *_cells(changes, steps)])
        if method != BASELINE and BASELINE in curves:
            over = [
                {step: curve[step] - other[step] for step in curve.keys() & other.keys()}
                for curve, other in zip(seeds, curves[BASELINE], strict=True)
            ]
            rows.append([f"{method}, over {BASELINE}", *_cells(over, steps)])
    return markdown([f"{name} after", *(f"{step} steps" for step in steps)], rows)


def _cells(curves: Sequence[Mapping[int, float]], steps: Sequence[int]) -> list[str]:
    """Return the mean over seeds at every step, empty if a seed has no value."""
    return [
        mean_and_interval([curve[step] for curve in curves], "+.3f")
        if all(step in curve for curve in curves)
        else ""
        for step in steps
    ]


if __name__ == "__main__":
    main()
