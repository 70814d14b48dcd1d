"""Tables that a run prints: its evaluations before and after training."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from statistics import fmean

from rich.table import Table

from rlsys.reporting.metrics_file import EvaluationRecord


def evaluation_table(evaluations: Mapping[str, EvaluationRecord]) -> Table:
    """Return a table with one row per evaluation.

    The columns are the anytime curve if there is one, otherwise one column per number.
    `evaluations` maps the name of a row to its numbers. If there are several rows, an additional
    last row shows the change from the first to the last.
    """
    first = next(iter(evaluations.values()))
    return _curve_table(evaluations) if first.accuracy else _number_table(evaluations)


def _curve_table(evaluations: Mapping[str, EvaluationRecord]) -> Table:
    """Accuracy per budget, their mean (anytime accuracy) and the mean thought length in tokens."""
    table = Table(title="Accuracy on held-out problems by thinking budget (tokens)")
    table.add_column("")
    budgets = list(next(iter(evaluations.values())).accuracy)
    for heading in (*map(str, budgets), "anytime mean", "thought length"):
        table.add_column(heading, justify="right")
    rows = {name: _numbers(evaluation) for name, evaluation in evaluations.items()}
    for name, (*accuracies, length) in rows.items():
        table.add_row(name, *(f"{a:.3f}" for a in accuracies), f"{length:.1f}")
    if len(rows) > 1:
        first, *_, last = rows.values()
        *accuracies, length = [new - old for old, new in zip(first, last, strict=True)]
        table.add_row("change", *(f"{a:+.3f}" for a in accuracies), f"{length:+.1f}")
    return table


def _number_table(evaluations: Mapping[str, EvaluationRecord]) -> Table:
    """Show every number without a "/" in its name. The others are only written to files."""
    table = Table(title="Evaluation on held-out episodes")
    table.add_column("")
    # An evaluation that lost all its episodes lacks most numbers, so cells may stay empty.
    rows = {row: evaluation.numbers for row, evaluation in evaluations.items()}
    names = [name for name in dict.fromkeys(chain(*rows.values())) if "/" not in name]
    for name in names:
        table.add_column(name, justify="right")
    for row, numbers in rows.items():
        table.add_row(row, *(f"{numbers[n]:.3f}" if n in numbers else "" for n in names))
    if len(rows) > 1:
        first, *_, last = rows.values()
        both = first.keys() & last.keys()
        table.add_row("change", *(f"{last[n] - first[n]:+.3f}" if n in both else "" for n in names))
    return table


def _numbers(evaluation: EvaluationRecord) -> list[float]:
    """Return the accuracies in budget order, their mean, and the thought length."""
    accuracies = list(evaluation.accuracy.values())
    return [*accuracies, fmean(accuracies), evaluation.thought_length]
