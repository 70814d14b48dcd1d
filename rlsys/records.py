"""What environments record of an episode beside tokens and scores, one record type per kind.

ThoughtRecord    per answer of an episode with one thought
RevisionRecord   per episode, RevisionTimes per group, where thoughts are revised
TurnRecord       per reply of an episode of several turns
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from rlsys.types import Verdict


class ThoughtRecord(NamedTuple):
    """The thought before an answer, as far as rewards beside accuracy depend on it."""

    tokens: int
    """Thought tokens kept before the answer, without the token that ends a thought."""
    reflections: int
    """How often these tokens reflect (rlsys.algorithms.reflection.count_reflections)."""


class Outcome(StrEnum):
    """How the reflection model handled a thought. Every outcome but READ keeps the original."""

    READ = "read"
    EMPTY = "empty"
    """The thought has no text."""
    TOO_LONG = "too_long"
    """Thought and labels do not fit into the reflection model."""
    UNREADABLE = "unreadable"
    """The reply has no label."""
    FAILED = "failed"
    """The engine did not answer."""


class RevisionRecord(NamedTuple):
    """How a thought was read by the reflection model and revised."""

    outcome: Outcome
    missing_labels: int
    """Chunks of the thought without a label in the reply."""
    extra_labels: int
    """Labels of the reply that belong to no chunk."""
    cached_share: float | None
    """Share of prompt and kept thought that the engine found in its prefix cache when it sampled
    the revised answer; None if the thought was not revised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRecord:
    """What an environment of several turns returned for one reply, for rewards and reports."""

    shown: Mapping[str, float | str] = field(default_factory=dict)
    """Numbers and texts of the observation, by name; prompt templates may show them."""
    verdict: Verdict | None = None
    """None where the environment does not tell; a positive reward then counts as right."""
    charged: int | None = None
    """Sampled tokens taken from the shared budget; None where there is none."""
    counted: int | None = None
    """Tokens that a server counted in a unit of its own; they add up to no sampled tokens."""
    question: str | None = None
    """The question that was answered."""
    type: str | None = None
    """The question's type, which tells its difficulty."""
    end_reward: float | None = None
    """Part of the reward that belongs to the whole episode."""
    problems: int | None = None
    """Questions of the whole episode."""
    total_budget: int | None = None
    """Tokens that the whole episode may sample."""


class RevisionTimes(NamedTuple):
    """Seconds of one group's rollout."""

    total_s: float
    detection_s: float
    """Until the reflection model had read all thoughts."""
    extra_s: float
    """How long the group waited for revisions after everything else was done."""
