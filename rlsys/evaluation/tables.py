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
        table.add_column(heading, justify="right", no_wrap=True)
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


def comparison_tables(comparisons: Sequence[Comparison]) -> list[Table]:
    """Return accuracies with paired differences to the first method, and tokens with ratios.

    Methods are shown by letters; `method_letters` says which is which.
    """
    anytime = _difference_table(
        "Accuracy averaged over the budgets",
        [(row, row.anytime, row.anytime_difference) for row in comparisons],
    )
    final = _difference_table(
        "Accuracy at the largest budget",
        [(row, row.final, row.final_difference) for row in comparisons],
    )
    tokens = Table(title="Tokens of a response at the largest budget, and their ratios in %")
    _add_columns(tokens, "tokens", "to A", "A to it")
    for row in comparisons:
        cells = (f"{v:.1f}" for v in (row.tokens, row.token_ratio, row.token_ratio_reverse))
        tokens.add_row(row.set, row.letter, *cells)
    return [anytime, final, tokens]


def method_letters(comparisons: Sequence[Comparison]) -> list[str]:
    """Return a line for every method: its letter, its number of training seeds, its folders."""
    methods = {row.letter: row for row in comparisons}
    return [
        f"{letter}: {row.seeds} training seed{'s' * (row.seeds > 1)}, {row.method}"
        for letter, row in methods.items()
    ]


def _difference_table(
    title: str, rows: Sequence[tuple[Comparison, Estimate, Estimate | None]]
) -> Table:
    table = Table(title=f"{title}, with 95 % bootstrap intervals")
    _add_columns(table, "accuracy", "difference to A")
    for row, mean, difference in rows:
        table.add_row(row.set, row.letter, _estimate(mean), _estimate(difference, signed=True))
    return table


def _add_columns(table: Table, *headings: str) -> None:
    for heading in ("set", "method"):
        table.add_column(heading)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)


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
