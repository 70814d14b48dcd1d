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

from functools import partial

import numpy as np

from rlsys.reporting.metrics_file import EvaluationRecord
from table_runs import Of, Runs, carry_out, markdown, mean_and_interval, parser, starts, write_raw

METHODS = {
    "GRPO": "configs/grpo.yaml",
    "BRPO base": "configs/brpo_base.yaml",
    "BRPO linear": "configs/brpo_linear.yaml",
    "BRPO uniform": "configs/demo.yaml",
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
    every = [run for runs in found.values() for run in runs]
    last = max(set.intersection(*({e.step for e in run} for run in every)))
    columns: dict[str, Of] = {str(b): partial(accuracy, b) for b in every[0][0].accuracy}
    columns["anytime"] = anytime
    forms = dict.fromkeys(columns, ".3f") | {"thought length": ".1f"}
    columns["thought length"] = lambda e: e.thought_length
    rows = {"warm start": {name: starts(found, of) for name, of in columns.items()}}
    for method, runs in found.items():
        ends = [at_step(run, last) for run in runs]
        rows[method] = {
            name: [of(e) for e in ends if e is not None] for name, of in columns.items()
        }
    return markdown(
        [f"after {last} steps", *columns],
        (
            [name, *(mean_and_interval(values, forms[column]) for column, values in row.items())]
            for name, row in rows.items()
        ),
    )


def differences(found: Runs, name: str, of: Of) -> str:
    """Return how a number changed since the warm start, and how it differs from the baseline's.

    Differences are paired by seed. A cell is empty if a run has not reached the step.
    """
    steps = sorted({e.step for runs in found.values() for run in runs for e in run} - {0})
    rows = []
    for method, runs in found.items():
        others = {"over its warm start": [[run[0]] * len(steps) for run in runs]}
        if method != BASELINE and BASELINE in found:
            others[f"over {BASELINE}"] = [
                [at_step(run, step) for step in steps] for run in found[BASELINE]
            ]
        for label, other in others.items():
            cells = []
            for index, step in enumerate(steps):
                pairs = [
                    (at_step(run, step), line[index]) for run, line in zip(runs, other, strict=True)
                ]
                values = [of(a) - of(b) for a, b in pairs if a is not None and b is not None]
                there = len(values) == len(runs)
                cells.append(mean_and_interval(values, "+.3f") if there else "")
            rows.append([f"{method}, {label}", *cells])
    return markdown([f"{name} after", *(f"{step} steps" for step in steps)], rows)


def at_step(run: list[EvaluationRecord], step: int) -> EvaluationRecord | None:
    """Return the evaluation after a step, None if the run did not reach it."""
    return next((e for e in run if e.step == step), None)


if __name__ == "__main__":
    main()
