"""Records of an episode in addition to its tokens and scores, one type per kind of environment.

ThoughtRecord    per answer of an episode with one thought
RevisionRecord   per episode, RevisionTimes per group, where thoughts are revised
TurnRecord       per reply of an episode of several turns
AgentRecord      per episode that an agent played
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from rlsys.types import Verdict


class ThoughtRecord(NamedTuple):
    """The thought before an answer: the values that length and reflection rewards need."""

    tokens: int
    """Thought tokens kept before the answer, without the token that ends a thought."""
    reflections: int
    """Reflections in these tokens (rlsys.algorithms.reflection.count_reflections)."""


class Outcome(StrEnum):
    """Result of the detection for one thought. Every outcome except READ keeps the original."""

    READ = "read"
    EMPTY = "empty"
    """The thought has no text."""
    TOO_LONG = "too_long"
    """Thought and labels are longer than the longest sequence of the reflection model."""
    UNREADABLE = "unreadable"
    """The reply has no label."""
    FAILED = "failed"
    """The engine failed."""


class RevisionRecord(NamedTuple):
    """The detection and revision of one thought."""

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
    """None if the environment does not report it; a positive reward then counts as right."""
    charged: int | None = None
    """Sampled tokens taken from the shared budget; None without one."""
    counted: int | None = None
    """Tokens that the server counted with its own tokenizer; not comparable with sampled tokens."""
    question: str | None = None
    """The question that was answered."""
    type: str | None = None
    """The type of the question, which indicates its difficulty."""
    end_reward: float | None = None
    """The part of the reward that belongs to the whole episode."""
    problems: int | None = None
    """Number of questions of the whole episode."""
    total_budget: int | None = None
    """Tokens that the whole episode may sample."""


class AgentRecord(NamedTuple):
    """What an agent did in one episode."""

    calls: int
    """Chat completions that it got."""
    branches: int
    """Calls that did not go on after an earlier reply; 1 for an agent that keeps one chat."""
    failure: str | None
    """Why the agent has no score of its own; None if it ended well."""


class RevisionTimes(NamedTuple):
    """Seconds of one group's rollout."""

    total_s: float
    detection_s: float
    """Time from the end of the thoughts until all labels were read."""
    extra_s: float
    """Time that the group waited for revisions after everything else was done."""
