"""The table of serving_proof.py: accuracy over HTTP beside the evaluation of the same model."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlsys.estimates import bootstrap_mean
from table_runs import markdown


def serving(result: dict[str, Any]) -> str:
    """One row per way of serving; brackets are 95 % bootstrap intervals over the problems.

    `inside` counts the budgets at which the accuracy lies in the interval of `rlsys eval`, `equal`
    those at which the difference is at most the root of the sum of both squared half intervals: the
    accuracy over HTTP is a sample too.
    """
    evaluation = result["evaluation"]
    curve, samples = evaluation["curve"], evaluation["samples"]
    budgets = [str(point["budget"]) for point in curve]
    rows = [["`rlsys eval`", *(_cell(p["mean"], p["low"], p["high"]) for p in curve), "", ""]]
    for way, right in result["right"].items():
        found = [bootstrap_mean(np.array(right[b]) / samples) for b in budgets]
        inside = [p["low"] <= f.mean <= p["high"] for p, f in zip(curve, found, strict=True)]
        equal = [
            abs(f.mean - p["mean"]) <= np.hypot(f.high - f.low, p["high"] - p["low"]) / 2
            for p, f in zip(curve, found, strict=True)
        ]
        counts = [f"{sum(same)} of {len(curve)}" for same in (inside, equal)]
        rows.append([way, *(_cell(*f) for f in found), *counts])
    return markdown([f"{evaluation['problems']} problems", *budgets, "inside", "equal"], rows)


def _cell(mean: float, low: float, high: float) -> str:
    return f"{mean:.3f} [{low:.3f}, {high:.3f}]"
