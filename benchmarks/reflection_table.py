"""Compare tokens, accuracy and reflections after training with GRPO, GRPO + length and REA-RL.

    python benchmarks/reflection_table.py --out runs/rea                  one run after the other
    python benchmarks/reflection_table.py --out runs/rea --devices 0,1 --per-device 2 \\
        learner.gpus_per_rank=0.3 generation.gpus_per_engine=0.2 \\
        environment.revision.generation.gpus_per_engine=0.1
    python benchmarks/reflection_table.py --out runs/rea --report         table of existing runs

Every run is `rlsys train CONFIG` (configs/rearl_tiny.yaml, or --config) with the same seeds,
problems and steps, and with the settings of its method. A finished run is not started again. The
Markdown table shows held-out problems after the last step: means over seeds with 95 % t intervals.
Accuracy and thought tokens are those under the largest budget. `cut` is the accuracy if the
finished responses are cut at the next smaller budget. `under` is the accuracy if the thoughts are
ended at that budget and then answered. `hard` problems are those with the largest difficulty.
table.png shows the same numbers over the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from anytime_table import anytime
from rlsys.reporting.metrics_file import EvaluationRecord
from table_runs import (
    Column,
    Columns,
    Runs,
    Words,
    carry_out,
    parser,
    table,
    up_to_common_step,
    write_raw,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
"""Settings with this prefix are left out for methods without revisions."""


def main() -> None:
    """Start the missing runs, then print and write the table."""
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--config", default=CONFIG)
    arguments = options.parse_intermixed_args()
    methods = {
        m: [arguments.config, *words(METHODS[m], arguments.overrides)]
        for m in arguments.methods or METHODS
    }
    found = up_to_common_step(carry_out(methods, arguments))
    drawn = ("accuracy", "token ratio, %", "hard: reflections per 100 tokens")
    report(found, columns, drawn, arguments.out)


def report(
    found: Runs, columns: Callable[[EvaluationRecord], Columns], drawn: Sequence[str], out: Path
) -> None:
    """Print the table; write table, numbers, and a figure of the columns `drawn` to `out`."""
    all_columns = columns(next(iter(found.values()))[0][0])
    text = table(found, all_columns)
    print(text)
    (out / "table.md").write_text(text)
    write_raw(out / "table.json", found)
    draw(found, {name: all_columns[name] for name in drawn}).savefig(out / "table.png", dpi=120)


def words(of_method: Words, overrides: Words) -> Words:
    """Return the settings of a run: those of its method, and the overrides that apply to it."""
    fitting = [w for w in overrides if ORIGINALS not in of_method or not w.startswith(REVISION)]
    return [*of_method, *fitting]


def columns(example: EvaluationRecord) -> Columns:
    """Return the columns of the table."""
    *_, smaller, largest = example.accuracy
    difficulties = [n.split("_")[1] for n in example.numbers if n.startswith("accuracy/difficulty")]
    hard = f"difficulty_{max(difficulties, key=int)}"
    return {
        "accuracy": Column(lambda e: e.accuracy[largest]),
        "anytime": Column(anytime),
        f"under {smaller}": Column(lambda e: e.accuracy[smaller]),
        f"cut to {smaller}": Column(lambda e: e.numbers[f"cut/{smaller}"]),
        "thought tokens": Column(lambda e: e.thought_length, ".1f"),
        "token ratio, %": Column(lambda e: e.numbers["token_ratio"], ".1f"),
        "reflections per 100 tokens": Column(
            lambda e: 100 * e.numbers["reflections/per_token"], ".2f"
        ),
        "hard: accuracy": Column(lambda e: e.numbers[f"accuracy/{hard}"]),
        "hard: reflections per 100 tokens": Column(
            lambda e: 100 * e.numbers[f"reflections/per_token/{hard}"], ".2f"
        ),
    }


def draw(found: Runs, columns: Columns) -> Figure:
    """Draw each column over the steps: means and ranges over seeds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4), layout="constrained")
    for axes, (name, column) in zip(figure.subplots(1, len(columns)), columns.items(), strict=True):
        for method, runs in found.items():
            steps = [e.step for e in runs[0]]
            values_SE = np.array([[column.of(e) for e in run] for run in runs])
            axes.plot(steps, values_SE.mean(axis=0), label=method)
            axes.fill_between(steps, values_SE.min(axis=0), values_SE.max(axis=0), alpha=0.15)
        axes.set(xlabel="step", title=name)
        axes.grid(alpha=0.3)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=len(found))
    return figure


if __name__ == "__main__":
    main()
