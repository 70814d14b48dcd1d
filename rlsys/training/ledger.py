"""The ledger: what became of every group that a run admitted.

    trained     its tokens entered the optimizer step(s) of one training step
    dropped     its training step came, but none of its tokens entered an optimizer step; with
                dynamic sampling, the step skipped it because it had no signal
    in flight   admitted, and its training step has not come: still sampled, or it waits

Groups are numbered in admission order from 0, and training steps take them in this order: group i
belongs to step i // P + 1 for P groups per step. With dynamic sampling a step takes the groups that
it drops in addition to P. So a run lost nothing if every number up to the last one has exactly one
fate. A group that is too old is in no fate of its own: it would end the run (rlsys.training.loop).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Literal

import msgspec
import numpy as np

from rlsys.types import GroupReport

LOST = "all episodes were lost"
NO_TOKENS = "no token of it is trained"
NOT_FINITE = "loss or gradient was not finite"
NO_SIGNAL = "no signal"

LENGTHS = ("thought/length", "response/length")
"""Metrics of a report that say how long its episodes are, the preferred one first."""


class GroupFate(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the ledger. It is written when the training step of the group has ended."""

    step: int
    """Training step (from 1) of the group. Its weights before the step have version step - 1."""
    group: int
    """Place in the admission order, from 0."""
    problem: str
    fate: Literal["trained", "dropped"]
    reason: str | None
    """Why it was dropped; None if it was trained."""
    sampled: tuple[int, int] | None
    """Oldest and newest version that sampled a token of it; None if nothing was sampled."""
    tokens: int
    """Trained tokens, see rlsys.types.Sample.num_trained; 0 if it was dropped."""
    length: float | None
    """Mean length in tokens: of the thoughts, or of the responses where there are no thoughts."""
    score: float | None
    """Mean score of the episodes; None if all of them were lost."""
    admitted: int
    """How many groups the run had admitted when this line was written."""


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The fates of the groups 0 .. n - 1 of a run that has admitted n groups."""

    steps: int
    trained: int
    dropped: dict[str, int]
    """Number of dropped groups by reason."""
    in_flight: range
    """Groups that wait for a training step after the last line of the ledger."""
    missing: list[int]
    """Groups that have no line although one of a later or of the same step has."""
    doubled: list[int]
    """Groups that have several lines."""

    @property
    def whole(self) -> bool:
        """True if every admitted group has exactly one fate."""
        return not self.missing and not self.doubled


def group_fates(
    reports: Sequence[GroupReport],
    *,
    step: int,
    applied: bool,
    admitted: int,
    without_signal: Collection[int] = (),
) -> list[GroupFate]:
    """Return the ledger's lines of the groups that training step `step` took.

    Args:
        reports: the groups of the step.
        step: training step, from 1.
        applied: False if all optimizer steps of the training step were skipped. If only some were,
            their groups count as trained: the learner mixes episodes of all groups.
        admitted: groups that the run has admitted so far.
        without_signal: groups that dynamic sampling dropped, by place in the admission order.
    """
    fates = []
    for report in reports:
        tokens = sum(trained for _, trained in report.sizes)
        reason = _reason(report, tokens, applied)
        if reason in (None, NOT_FINITE) and report.index in without_signal:
            reason = NO_SIGNAL
        fates.append(
            GroupFate(
                step=step,
                group=report.index,
                problem=report.problem_id,
                fate="trained" if reason is None else "dropped",
                reason=reason,
                sampled=report.versions,
                tokens=tokens if reason is None else 0,
                length=_mean_length(report),
                score=float(report.scores_G.mean()) if len(report.scores_G) else None,
                admitted=admitted,
            )
        )
    return fates


def summarise(fates: Sequence[GroupFate]) -> Summary:
    """Count fates, and find groups without a line or with several; order does not matter."""
    lines = Counter(fate.group for fate in fates)
    settled = max(lines, default=-1) + 1
    admitted = max((fate.admitted for fate in fates), default=0)
    return Summary(
        steps=max((fate.step for fate in fates), default=0),
        trained=sum(fate.fate == "trained" for fate in fates),
        dropped=dict(Counter(fate.reason for fate in fates if fate.reason is not None)),
        in_flight=range(settled, max(settled, admitted)),
        missing=[group for group in range(settled) if group not in lines],
        doubled=sorted(group for group, count in lines.items() if count > 1),
    )


def fate_metrics(fates: Sequence[GroupFate]) -> dict[str, float]:
    """Return the metrics of one training step from its lines."""
    trained = sum(fate.fate == "trained" for fate in fates)
    after = max(fate.group for fate in fates) + 1
    return {
        "groups/trained": float(trained),
        "groups/dropped": float(len(fates) - trained),
        "groups/in_flight": float(max(fate.admitted for fate in fates) - after),
    }


def _reason(report: GroupReport, tokens: int, applied: bool) -> str | None:
    if not len(report.scores_G):
        return LOST
    if not tokens:
        return NO_TOKENS
    return None if applied else NOT_FINITE


def _mean_length(report: GroupReport) -> float | None:
    for name in LENGTHS:
        if len(values := report.numbers.get(name, ())):
            return float(np.mean(values))
    return None
