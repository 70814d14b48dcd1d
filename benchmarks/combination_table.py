"""Compare BRPO, REA-RL, and both in one run: accuracy at every budget, and reflections.

    python benchmarks/combination_table.py --out runs/combination          one run after the other
    python benchmarks/combination_table.py --out runs/combination --report

The runs of all methods have the same seeds, problems and steps, and are evaluated under the same
budgets. A finished run is not started again. The Markdown table shows held-out problems after the
last step: means over seeds with 95 % t intervals. `hard` problems are those with the largest
difficulty.
"""

from __future__ import annotations

from functools import partial

import reflection_table
from anytime_table import accuracy, anytime
from reflection_table import report
from rlsys.reporting.metrics_file import EvaluationRecord
from table_runs import Column, Columns, carry_out, parser, up_to_common_step

BRPO, REARL = "configs/brpo_reflection.yaml", "configs/rearl_tiny.yaml"
METHODS = {
    "BRPO": (BRPO, "algorithm.shaping=null"),
    "BRPO + length": (BRPO, "algorithm.shaping.reflection=null"),
    "BRPO + reflection": (BRPO, "algorithm.shaping.length=none"),
    "BRPO + both": (BRPO,),
    "REA-RL": (REARL,),
}
SAME = ("evaluation.budgets=[16,32,64,192]",)
"""Settings of all runs."""
SHARED = (
    "thought tokens",
    "reflections per 100 tokens",
    "hard: accuracy",
    "hard: reflections per 100 tokens",
)
"""Columns that this table takes from the table of REA-RL."""


def main() -> None:
    """Start the missing runs, then print and write the table."""
    arguments = parser(__doc__.splitlines()[0]).parse_intermixed_args()
    chosen = arguments.methods or METHODS
    methods = {m: [*METHODS[m], *SAME, *arguments.overrides] for m in chosen}
    found = up_to_common_step(carry_out(methods, arguments))
    drawn = ("anytime", "thought tokens", "hard: reflections per 100 tokens")
    report(found, columns, drawn, arguments.out)


def columns(example: EvaluationRecord) -> Columns:
    """Return the columns: accuracy per budget, their mean, and the SHARED columns."""
    per_budget = {str(b): Column(partial(accuracy, b)) for b in example.accuracy}
    of_rea = reflection_table.columns(example)
    return per_budget | {"anytime": Column(anytime)} | {name: of_rea[name] for name in SHARED}


if __name__ == "__main__":
    main()
