"""Numbers of one step, from the groups' reports."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from rlsys.environments.report import GroupReport


class Stopwatch:
    """Seconds of consecutive parts of a step."""

    def __init__(self) -> None:
        self._start = self._last = time.monotonic()
        self.laps: dict[str, float] = {}

    def lap(self, name: str) -> None:
        """End the part `name`, which began at the lap before."""
        now = time.monotonic()
        self.laps[name] = now - self._last
        self._last = now

    @property
    def total(self) -> float:
        """Seconds from the start to the last lap."""
        return self._last - self._start


def step_metrics(
    reports: Sequence[GroupReport], *, budgets: Sequence[int], version: int
) -> dict[str, float]:
    """Means over a batch of groups that is trained at `version`."""
    scores_NM = np.concatenate([r.scores_GM for r in reports])
    lengths_N = np.concatenate([r.thought_lengths_G for r in reports])
    stale = [version - r.versions[0] for r in reports]
    per_group = np.array([r.scores_GM.mean() for r in reports])
    return {
        **{f"score/{budget}": score for budget, score in curve_of(reports, budgets).items()},
        "score/mean": float(scores_NM.mean()),
        "groups/all_wrong": float((per_group == 0).mean()),
        "groups/all_right": float((per_group == 1).mean()),
        "thought/length": float(lengths_N.mean()),
        "thought/length_p95": float(np.percentile(lengths_N, 95)),
        "thought/closed": float(np.concatenate([r.closed_G for r in reports]).mean()),
        "answers/invalid": sum(r.invalid for r in reports) / sum(r.answers for r in reports),
        "staleness/mean": float(np.mean(stale)),
        "staleness/max": float(max(stale)),
    }


def curve_of(reports: Sequence[GroupReport], budgets: Sequence[int]) -> dict[int, float]:
    """Accuracy at every budget over all episodes of all groups."""
    means = np.concatenate([r.scores_GM for r in reports]).mean(axis=0)
    return {budget: float(mean) for budget, mean in zip(budgets, means, strict=True)}
