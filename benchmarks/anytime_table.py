"""Accuracy per budget after training the tiny reasoner with GRPO and with BRPO under three priors.

    python benchmarks/anytime_table.py --out runs/anytime                  one run after the other
    python benchmarks/anytime_table.py --out runs/anytime --devices 0,1,2,3 --per-device 3 \\
        learner.gpus_per_rank=0.3 generation.gpus_per_engine=0.3

    python benchmarks/anytime_table.py --out runs/anytime --report          tables of existing runs

Every run is `rlsys train` with the same seeds, problems and steps; only the method differs. A
finished run is not started again. The script prints two Markdown tables for held-out problems:
accuracy per budget at the last step that all runs have evaluated, and the gain in anytime accuracy
(the mean over budgets) at every evaluated step. Numbers are means over seeds with 95 % t intervals.
"""

from __future__ import annotations

import json

import numpy as np

from rlsys.reporting.metrics_file import EvaluationRecord
from table_runs import Runs, carry_out, mean_and_interval, parser

METHODS = {
    "GRPO": "configs/grpo.yaml",
    "BRPO base": "configs/brpo_base.yaml",
    "BRPO linear": "configs/brpo_linear.yaml",
    "BRPO uniform": "configs/demo.yaml",
}


Curves = dict[str, list[dict[int, EvaluationRecord]]]
"""Per method, one mapping for each seed: from step to evaluation."""


def main() -> None:
    """Start the missing runs, then print and write the tables."""
    arguments = parser(__doc__.splitlines()[0]).parse_intermixed_args()
    chosen = arguments.methods or METHODS
    found = curves(carry_out({m: [METHODS[m], *arguments.overrides] for m in chosen}, arguments))
    tables = f"{accuracies(found)}\n{gains(found)}"
    print(tables)
    (arguments.out / "table.md").write_text(tables)
    (arguments.out / "table.json").write_text(json.dumps(numbers(found), indent=2))


def curves(found: Runs) -> Curves:
    """Return the evaluations by step."""
    return {m: [{e.step: e for e in run} for run in runs] for m, runs in found.items()}


def anytime(evaluation: EvaluationRecord) -> float:
    """Return the mean accuracy over budgets."""
    return float(np.mean(list(evaluation.accuracy.values())))


def numbers(found: Curves) -> dict[str, object]:
    """Return all numbers behind the tables, per method, seed and step."""
    return {
        method: [
            {
                step: {"accuracy": e.accuracy, "thought_length": e.thought_length}
                for step, e in evaluations.items()
            }
            for evaluations in seeds
        ]
        for method, seeds in found.items()
    }


def accuracies(found: Curves) -> str:
    """Return a table with one row per method at the last common step; the warm start is first."""
    every = [evaluations for seeds in found.values() for evaluations in seeds]
    last = max(set.intersection(*(set(evaluations) for evaluations in every)))
    budgets = list(every[0][0].accuracy)
    lines = [
        f"| after {last} steps | {' | '.join(map(str, budgets))} | anytime | thought length |",
        f"|---|{'---|' * (len(budgets) + 2)}",
        row("warm start", [evaluations[0] for evaluations in every], budgets),
    ]
    lines += [row(method, [e[last] for e in seeds], budgets) for method, seeds in found.items()]
    return "\n".join(lines) + "\n"


def row(name: str, evaluations: list[EvaluationRecord], budgets: list[int]) -> str:
    """Return one row of the accuracy table: means over runs."""
    accuracy = [float(np.mean([e.accuracy[b] for e in evaluations])) for b in budgets]
    length = float(np.mean([e.thought_length for e in evaluations]))
    cells = [*(f"{a:.3f}" for a in accuracy), f"{np.mean(accuracy):.3f}", f"{length:.1f}"]
    return f"| {name} | {' | '.join(cells)} |"


def gains(found: Curves) -> str:
    """Return the gains in anytime accuracy since the start of each run.

    A cell is empty if a run has not reached the step.
    """
    steps = sorted({step for seeds in found.values() for e in seeds for step in e} - {0})
    lines = [
        f"| gain after | {' | '.join(f'{step} steps' for step in steps)} |",
        f"|---|{'---|' * len(steps)}",
    ]
    for method, seeds in found.items():
        cells = []
        for step in steps:
            there = all(step in evaluations for evaluations in seeds)
            values = [anytime(e[step]) - anytime(e[0]) for e in seeds] if there else []
            cells.append(mean_and_interval(values, "+.3f") if there else "")
        lines.append(f"| {method} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
