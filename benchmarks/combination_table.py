"""BRPO's dense budgets, REA-RL, and both in one run: accuracy at every budget, and reflections.

    python benchmarks/combination_table.py --out runs/combination          one run after the other
    python benchmarks/combination_table.py --out runs/combination --report

The runs of all methods have the same seeds, problems and steps, and are measured under the same
budgets. Runs that are finished are not run again. The Markdown table is of held-out problems after
the last step: means over seeds with 95 % t intervals. `hard` problems are those of the largest
difficulty.
"""

from __future__ import annotations

import numpy as np

from reflection_table import Columns, hardest, report
from rlsys.orchestration.metrics_sink import Evaluation
from table_runs import carry_out, parser, up_to_common_step

BRPO, REARL = "configs/brpo_reflection.yaml", "configs/rearl_tiny.yaml"
METHODS = {
    "BRPO": (BRPO, "algorithm.shaping=null"),
    "BRPO + length": (BRPO, "algorithm.shaping.reflection=null"),
    "BRPO + reflection": (BRPO, "algorithm.shaping.length=none"),
    "BRPO + both": (BRPO,),
    "REA-RL": (REARL,),
}
SAME = ("evaluation.budgets=[16,32,64,192]",)
"""What every run is told."""


def main() -> None:
    """Run what is missing, then print and write the table."""
    arguments = parser(__doc__.splitlines()[0]).parse_intermixed_args()
    chosen = arguments.methods or METHODS
    methods = {m: [*METHODS[m], *SAME, *arguments.overrides] for m in chosen}
    found = up_to_common_step(carry_out(methods, arguments))
    drawn = ("anytime", "thought tokens", "hard: reflections per 100 tokens")
    report(found, columns(next(iter(found.values()))[0][0]), drawn, arguments.out)


def columns(example: Evaluation) -> Columns:
    """Accuracy per budget and their mean; thoughts and answers under the largest budget."""
    hard = hardest(example)
    per_budget: Columns = {
        str(budget): lambda e, budget=budget: e.accuracy[budget]  # type: ignore[misc]
        for budget in example.accuracy
    }
    return per_budget | {
        "anytime": lambda e: float(np.mean(list(e.accuracy.values()))),
        "thought tokens": lambda e: e.thought_length,
        "reflections per 100 tokens": lambda e: 100 * e.numbers["reflections/per_token"],
        "hard: accuracy": lambda e: e.numbers[f"accuracy/{hard}"],
        "hard: reflections per 100 tokens": lambda e: (
            100 * e.numbers[f"reflections/per_token/{hard}"]
        ),
    }


if __name__ == "__main__":
    main()
