"""Warnings about a run that works but learns little, each with the key to change.

A single step may be an accident, so a warning is about the mean of several steps. Each is given
once in a run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from statistics import fmean
from typing import Final, NamedTuple

from rlsys.config import EnvironmentConfig

STEPS: Final = 5
"""Steps that a warning is about."""
MOST_CUT: Final = 0.2
"""Share of thoughts that may be cut at their token limit."""
LEAST_SIGNAL: Final = 0.1
"""Share of groups that must have both right and wrong answers."""


class _Rule(NamedTuple):
    metric: str
    worrying: Callable[[float], bool]
    sentence: str
    """With {share}, the mean of the metric."""


class Health:
    """Watches the metrics of a run."""

    def __init__(self, environment: EnvironmentConfig) -> None:
        limit = environment.length_keys.partition(",")[0]
        self._rules = [
            _Rule(
                "thought/cut",
                lambda share: share > MOST_CUT,
                f"{{share:.0%}} of the thoughts were cut at their token limit in the last {STEPS} "
                f"steps, so most of them are judged unfinished; raise {limit}",
            ),
            _Rule(
                "groups/signal",
                lambda share: share < LEAST_SIGNAL,
                f"only {{share:.0%}} of the groups had both right and wrong answers in the last "
                f"{STEPS} steps, and the others train nothing; choose problems that the model "
                "solves now and then, raise batch.group_size, or set batch.dynamic_sampling",
            ),
        ]
        self._recent: dict[str, deque[float]] = {}

    def warnings(self, metrics: Mapping[str, float]) -> list[str]:
        """Take the metrics of the next step; return the sentences that are new."""
        found = []
        for rule in list(self._rules):
            if rule.metric not in metrics:
                continue
            recent = self._recent.setdefault(rule.metric, deque(maxlen=STEPS))
            recent.append(metrics[rule.metric])
            share = fmean(recent)
            if len(recent) == STEPS and rule.worrying(share):
                found.append(rule.sentence.format(share=share))
                self._rules.remove(rule)
        return found
