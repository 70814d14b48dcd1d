"""Tables that `rlsys eval sets` and `rlsys eval compare` print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.table import Table

from rlsys.estimates import Estimate
from rlsys.evaluation.comparison import Comparison
from rlsys.evaluation.summary import ANYTIME

COLUMNS: Final = 4
"""Budgets that have a column each; the others are in summary.json."""


def accuracy_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return accuracy by set and budget, with intervals for the mean over budgets and the last."""
    budgets = list(dict.fromkeys(row["budget"] for row in rows if row["budget"] != ANYTIME))
    shown = _spread(budgets)
    table = Table(title="Accuracy by thinking budget (tokens), with 95 % intervals over problems")
    table.add_column("set")
    for heading in (*map(str, shown), "anytime mean"):
        table.add_column(heading, justify="right")
    for name in dict.fromkeys(row["set"] for row in rows):
        found = {row["budget"]: row for row in rows if row["set"] == name}
        cells = [
            "" if b not in found else _interval(found[b]) if b == shown[-1] else _mean(found[b])
            for b in shown
        ]
        table.add_row(name, *cells, _interval(found[ANYTIME]))
    return table


def details_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return everything else that is known about the largest budget of every set."""
    last = {row["set"]: row for row in rows if row["budget"] != ANYTIME}
    names = [
        key
        for key in dict.fromkeys(key for row in last.values() for key in row)
        if key not in ("set", "budget", "accuracy", "low", "high")
    ]
    budgets = {row["budget"] for row in last.values()}
    table = Table(title=f"At the largest budget ({', '.join(map(str, sorted(budgets)))} tokens)")
    table.add_column("")
    for name in last:
        table.add_column(name, justify="right")
    for key in names:
        cells = ["" if key not in row else _number(key, row[key]) for row in last.values()]
        table.add_row(key.replace("_", " "), *cells)
    return table


def comparison_table(comparisons: Sequence[Comparison]) -> Table:
    """Return means, paired differences to the first method, and token ratios."""
    table = Table(title=f"Differences to {comparisons[0].method}, with 95 % bootstrap intervals")
    table.add_column("set")
    table.add_column("method", overflow="fold")
    for heading in ("seeds", "anytime", "difference", "final", "difference"):
        table.add_column(heading, justify="right")
    for heading in ("tokens", "A/B %", "B/A %"):
        table.add_column(heading, justify="right")
    for row in comparisons:
        table.add_row(
            row.set,
            row.method,
            str(row.seeds),
            _estimate(row.anytime),
            _estimate(row.anytime_difference, signed=True),
            _estimate(row.final),
            _estimate(row.final_difference, signed=True),
            f"{row.tokens:.1f}",
            f"{row.token_ratio:.1f}",
            f"{row.token_ratio_reverse:.1f}",
        )
    return table


def _spread(budgets: Sequence[int]) -> list[int]:
    """Return at most COLUMNS budgets, evenly spread, the last one included."""
    if len(budgets) <= COLUMNS:
        return list(budgets)
    return [budgets[round(len(budgets) * (i + 1) / COLUMNS) - 1] for i in range(COLUMNS)]


def _mean(row: Mapping[str, Any]) -> str:
    return f"{row['accuracy']:.3f}"


def _interval(row: Mapping[str, Any]) -> str:
    return f"{row['accuracy']:.3f} [{row['low']:.3f}, {row['high']:.3f}]"


def _estimate(value: Estimate | None, *, signed: bool = False) -> str:
    if value is None:
        return ""
    mean, low, high = (f"{part:+.3f}" if signed else f"{part:.3f}" for part in value)
    return f"{mean} [{low}, {high}]"


def _number(key: str, value: float) -> str:
    return f"{value:.1f}" if "token" in key else f"{value:.3f}"
