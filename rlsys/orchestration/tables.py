"""Tables a run prints: the anytime curve before and after training."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from rich.table import Table

from rlsys.orchestration.metrics_sink import Evaluation


def curve_table(evaluations: Mapping[str, Evaluation]) -> Table:
    """Accuracy per budget, their mean (anytime accuracy) and the mean thought length in tokens.

    `evaluations` maps a row's name to its curve; all share their budgets. With two rows or more a
    last one shows the change from the first to the last.
    """
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


def _numbers(evaluation: Evaluation) -> list[float]:
    """Accuracies in budget order, their mean, the thought length."""
    accuracies = list(evaluation.accuracy.values())
    return [*accuracies, fmean(accuracies), evaluation.thought_length]
