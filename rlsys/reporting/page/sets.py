"""Evaluations on many sets: a curve of accuracy over budgets for each set, with bands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlsys.evaluation.records import RESULTS, read_results
from rlsys.evaluation.summary import ANYTIME, results_by_set, summarise
from rlsys.reporting.page.charts import COLOURS, Figure, plain
from rlsys.reporting.page.summary import html_table

BAND_OPACITY = "33"
"""The last two hexadecimal digits of the colour of a band."""
COLUMNS = ("accuracy", "low", "high", "thought_tokens", "answer_tokens", "cut_share")


@dataclass(frozen=True, slots=True, kw_only=True)
class SetsFiles:
    """One evaluation of `rlsys eval sets`."""

    name: str
    rows: Sequence[dict[str, Any]]
    """See rlsys.evaluation.summary.summarise."""


def holds_sets(folder: Path) -> bool:
    """Tell whether a folder is that of `rlsys eval sets`."""
    return (folder / RESULTS).is_file()


def read_sets(folders: Sequence[Path]) -> list[SetsFiles]:
    """Read evaluations, finished or not. Raises DataError for a damaged file."""
    return [
        SetsFiles(name=str(folder), rows=summarise(results_by_set(read_results(folder))))
        for folder in folders
    ]


def set_charts(evaluations: Sequence[SetsFiles]) -> list[tuple[str, Figure]]:
    """Return name and figure of every set that one of the evaluations has."""
    names = dict.fromkeys(row["set"] for found in evaluations for row in found.rows)
    return [(name, _chart(name, evaluations)) for name in names]


def sets_table(evaluations: Sequence[SetsFiles]) -> str:
    """Return the numbers of every set and budget, one row each, as HTML."""
    rows = [
        [found.name, row["set"], str(row["budget"]), *(_cell(row, key) for key in COLUMNS)]
        for found in evaluations
        for row in found.rows
    ]
    head = ["evaluation", "set", "budget", *(key.replace("_", " ") for key in COLUMNS)]
    return html_table(head, rows) if rows else ""


def _chart(name: str, evaluations: Sequence[SetsFiles]) -> Figure:
    traces: list[Figure] = []
    for number, found in enumerate(evaluations):
        rows = [row for row in found.rows if row["set"] == name and row["budget"] != ANYTIME]
        if rows:
            traces += _curve(found.name, rows, COLOURS[number % len(COLOURS)])
    return {
        "data": traces,
        "layout": {
            "xaxis": {"title": {"text": "thinking budget (tokens)"}},
            "yaxis": {"title": {"text": "accuracy"}},
        },
    }


def _curve(name: str, rows: Sequence[dict[str, Any]], colour: str) -> list[Figure]:
    """Return a line, and its interval as a band: there and back around the area."""
    budgets = [row["budget"] for row in rows]
    back = rows[::-1]
    band: Figure = {
        "type": "scatter",
        "mode": "lines",
        "x": [*budgets, *budgets[::-1]],
        "y": [row["high"] for row in rows] + [row["low"] for row in back],
        "fill": "toself",
        "fillcolor": colour + BAND_OPACITY,
        "line": {"width": 0},
        "hoverinfo": "skip",
        "showlegend": False,
        "legendgroup": plain(name),
    }
    line: Figure = {
        "type": "scatter",
        "mode": "lines+markers",
        "x": budgets,
        "y": [row["accuracy"] for row in rows],
        "name": plain(name),
        "line": {"color": colour, "width": 2},
        "legendgroup": plain(name),
    }
    return [band, line]


def _cell(row: dict[str, Any], key: str) -> str:
    if key not in row:
        return ""
    return f"{row[key]:.1f}" if "tokens" in key else f"{row[key]:.3f}"
