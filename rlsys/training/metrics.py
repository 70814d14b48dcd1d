"""Metrics of one step, from the reports of its groups."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from rlsys.types import Floats, GroupReport


class Stopwatch:
    """Measures the consecutive parts of a step in seconds."""

    def __init__(self) -> None:
        self._start = self._last = time.monotonic()
        self.laps: dict[str, float] = {}

    def lap(self, name: str) -> None:
        """End the part `name`, which began when the part before it ended."""
        now = time.monotonic()
        self.laps[name] = now - self._last
        self._last = now

    @property
    def total(self) -> float:
        """Seconds from the start to the last lap."""
        return self._last - self._start


def step_metrics(reports: Sequence[GroupReport], *, version: int) -> dict[str, float]:
    """Return the metrics of a batch of groups that is trained at `version`."""
    # Staleness of the oldest token of a group, because the bound applies to that token. A group
    # whose episodes were all lost has no versions.
    stale = [version - r.versions[0] for r in reports if r.versions is not None]
    # If all answers of a group are wrong, or all are right, a group baseline makes all advantages 0
    # and the group trains nothing. These groups are counted below.
    per_group = np.array([r.scores_G.mean() for r in reports if len(r.scores_G)])
    lengths = {
        f"{name}_p95": float(np.percentile(values, 95))
        for name, values in gathered(reports).items()
        if name.endswith("/length") and len(values)
    }
    means = mean_numbers(reports)
    if "thought/closed" in means:
        means["thought/cut"] = 1.0 - means["thought/closed"]
    all_wrong, all_right = float((per_group == 0).mean()), float((per_group == 1).mean())
    return {
        **means,
        **lengths,
        "score/mean": float(np.concatenate([r.scores_G for r in reports]).mean()),
        "groups/all_wrong": all_wrong,
        "groups/all_right": all_right,
        "groups/signal": 1.0 - all_wrong - all_right,
        "answers/invalid": sum(r.invalid for r in reports) / sum(r.answers for r in reports),
        "staleness/mean": float(np.mean(stale)),
        "staleness/max": float(max(stale)),
    }


def gathered(reports: Sequence[GroupReport]) -> dict[str, Floats]:
    """Return the values of every metric over all groups. A group may lack some metrics."""
    names = dict.fromkeys(name for report in reports for name in report.numbers)
    return {
        name: np.concatenate([r.numbers[name] for r in reports if name in r.numbers])
        for name in names
    }


def mean_numbers(reports: Sequence[GroupReport]) -> dict[str, float]:
    """Return the mean of every metric that has a value."""
    return {name: float(v.mean()) for name, v in gathered(reports).items() if len(v)}
