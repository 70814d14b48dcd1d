"""Warnings about a run that works but learns little or slowly, each with the key to change.

A single step may be an accident, so a warning is about the mean of several steps. Its sentence is
given once in a run. The metrics `warning/NAME` say of every step whether it holds then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from statistics import fmean
from typing import Final, NamedTuple

from rlsys.config import RunConfig

STEPS: Final = 5
"""Steps that a warning is about."""
MOST_CUT: Final = 0.2
"""Share of thoughts that may be cut at their token limit."""
LEAST_SIGNAL: Final = 0.1
"""Share of groups that must have both right and wrong answers."""
MISMATCH_GROWTH: Final = 3.0
"""How many times its first value the gap between engines and learner may reach."""
LEAST_MISMATCH: Final = 0.01
"""Nats. A smaller gap does not matter, however much it has grown."""
LEARNER_WAITS: Final = 0.75
"""Share of the time in which the learner may wait for groups."""
ENGINES_WAIT: Final = 0.6
"""Share of the time in which engines may wait for the learner in a synchronous run."""
FULL: Final = 0.95
"""Share of the groups that may be sampled ahead; if so many wait, the engines wait as well."""
WARNING: Final = "warning/"

Metrics = Mapping[str, float]


class _Rule(NamedTuple):
    name: str
    metrics: tuple[str, ...]
    """Steps that lack one of them are not counted."""
    measure: Callable[[Metrics], float]
    """Returns what is watched, from the metrics of one step."""
    worrying: Callable[[float, float], bool]
    """Takes the mean of the last STEPS steps, and that of the first STEPS steps."""
    sentence: str
    """With {mean}, and {growth} = mean / mean of the first steps."""


class Health:
    """Watches the metrics of a run."""

    def __init__(self, config: RunConfig) -> None:
        self._rules = [_truncation(config), _mismatch(config)]
        self._rules += [_learner_waits(), _engines_wait(config)]
        # A teacher trains groups whose scores are all equal, too.
        if config.distillation is None:
            self._rules.append(_no_signal())
        self._recent: dict[str, deque[float]] = {}
        self._first: dict[str, float] = {}
        self._said: set[str] = set()
        self._standing: dict[str, float] = {}

    def warnings(self, metrics: Metrics) -> list[str]:
        """Take the metrics of the next step; return the sentences that are new."""
        found = []
        for rule in self._rules:
            if any(name not in metrics for name in rule.metrics):
                continue
            recent = self._recent.setdefault(rule.name, deque(maxlen=STEPS))
            recent.append(rule.measure(metrics))
            if len(recent) < STEPS:
                continue
            mean = fmean(recent)
            first = self._first.setdefault(rule.name, mean)
            worrying = rule.worrying(mean, first)
            self._standing[f"{WARNING}{rule.name}"] = float(worrying)
            if worrying and rule.name not in self._said:
                self._said.add(rule.name)
                growth = mean / first if first else float("inf")
                found.append(rule.sentence.format(mean=mean, growth=growth))
        return found

    @property
    def standing(self) -> dict[str, float]:
        """Return `warning/NAME` of every rule: 1 if it holds now, 0 if not.

        A rule has no entry before STEPS steps.
        """
        return dict(self._standing)


def _truncation(config: RunConfig) -> _Rule:
    limit = config.environment.length_keys.partition(",")[0]
    return _Rule(
        "truncation",
        ("thought/cut",),
        lambda metrics: metrics["thought/cut"],
        lambda mean, _: mean > MOST_CUT,
        f"{{mean:.0%}} of the thoughts were cut at their token limit in the last {STEPS} "
        f"steps, so most of them are judged unfinished; raise {limit}",
    )


def _no_signal() -> _Rule:
    return _Rule(
        "no_signal",
        ("groups/signal",),
        lambda metrics: metrics["groups/signal"],
        lambda mean, _: mean < LEAST_SIGNAL,
        f"only {{mean:.0%}} of the groups had both right and wrong answers in the last "
        f"{STEPS} steps, and the others train nothing; choose problems that the model "
        "solves now and then, raise batch.group_size, or set batch.dynamic_sampling",
    )


def _mismatch(config: RunConfig) -> _Rule:
    keys = "learner.optimizer.learning_rate, or set model.dtype=float32"
    if config.max_staleness:
        keys = "rollout.max_staleness or learner.optimizer.learning_rate"
    return _Rule(
        "mismatch",
        ("gap/mean",),
        lambda metrics: metrics["gap/mean"],
        lambda mean, first: mean > max(LEAST_MISMATCH, MISMATCH_GROWTH * first),
        "the log-probabilities of engines and learner are {mean:.2g} nats apart, {growth:.0f} "
        f"times as far as in the first {STEPS} steps; lower {keys}",
    )


def _learner_waits() -> _Rule:
    return _Rule(
        "learner_waits",
        ("time/generation", "time/step"),
        lambda metrics: metrics["time/generation"] / max(metrics["time/step"], 1e-9),
        lambda mean, _: mean > LEARNER_WAITS,
        f"the learner waited for groups in {{mean:.0%}} of the time of the last {STEPS} steps; "
        "raise generation.engines or generation.max_sequences",
    )


def _engines_wait(config: RunConfig) -> _Rule:
    ahead = config.max_staleness * config.batch.problems
    if not ahead:
        return _Rule(
            "engines_wait",
            ("time/generation", "time/step"),
            lambda metrics: 1.0 - metrics["time/generation"] / max(metrics["time/step"], 1e-9),
            lambda mean, _: mean > ENGINES_WAIT,
            f"the engines waited for the learner in {{mean:.0%}} of the time of the last {STEPS} "
            "steps; set rollout.max_staleness=1, so that they sample the next batch meanwhile",
        )
    return _Rule(
        "engines_wait",
        ("queue",),
        lambda metrics: metrics["queue"] / ahead,
        lambda mean, _: mean > FULL,
        "the engines had sampled all groups that they may sample ahead when each of the last "
        f"{STEPS} steps ended, so they wait for the learner; raise learner.ranks or "
        "learner.micro_batch_rows, or lower generation.engines",
    )
