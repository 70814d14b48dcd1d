"""Tables of the Countdown warm start: its training, and its answers to held-out problems."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from rlsys.estimates import bootstrap_mean
from table_runs import markdown

RAW: Final = Path(__file__).parent / "results" / "countdown_warm_start_H200.json"
SHOWN: Final = (20, 100, 200, 400, 600, 800)
"""Training steps."""
BUDGET, RIGHT, END, STEPS, WRONG_STEPS = 1, 2, 3, 4, 5
"""Columns of an evaluated problem."""


def training() -> str:
    """Return the loss of the supervised training."""
    rows = [row for row in _raw()["warm_start"]["rows"] if row[0] in SHOWN]
    return markdown(
        ["steps", *(str(step) for step, _, _ in rows)],
        [
            ["loss per token", *(f"{loss:.2f}" for _, loss, _ in rows)],
            ["tokens/s in training", *(f"{speed:,}" for _, _, speed in rows)],
        ],
    )


def accuracy() -> str:
    """Return the accuracy at every budget with a 95 % interval over problems."""
    found = _raw()["evaluation"]
    cells = []
    for index in range(len(found["budgets"])):
        estimate = bootstrap_mean([float(row[RIGHT][index]) for row in found["rows"]])
        cells.append(f"{estimate.mean:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]")
    return markdown(["budget", *map(str, found["budgets"])], [["accuracy", *cells]])


def thoughts() -> str:
    """Return how thoughts end, and how many of their steps are computed wrong."""
    rows = _raw()["evaluation"]["rows"]
    lines = []
    for end in ("found", "given up", "cut"):
        own = [row for row in rows if row[END] == end]
        right = sum(row[RIGHT][-1] for row in own) / len(own)
        wrong = sum(row[WRONG_STEPS] for row in own) / sum(row[STEPS] for row in own)
        lines.append([end, f"{len(own) / len(rows):.0%}", f"{right:.2f}", f"{wrong:.1%}"])
    return markdown(["end of the thought", "share", "right answers", "steps computed wrong"], lines)


def _raw() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RAW.read_text())
    return found
