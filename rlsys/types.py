"""What travels between the parts of rlsys: frozen records of numpy arrays and plain values.

An episode is a tree of token segments. Every method adds two things: a rollout that builds the tree
(an environment) and a function that turns its scores into advantages (an algorithm). Packing, loss
and learner know only the tree.

Reading order: Problem -> GenerationRequest/Completion -> Segment -> (rlsys.records) -> Episode ->
Group -> Sample -> GroupReport -> Environment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from rlsys.records import Outcome as Outcome
from rlsys.records import RevisionRecord as RevisionRecord
from rlsys.records import RevisionTimes as RevisionTimes
from rlsys.records import ThoughtRecord as ThoughtRecord
from rlsys.records import TurnRecord as TurnRecord

Tokens = NDArray[np.int32]
Floats = NDArray[np.float32]

Decode = Callable[[Sequence[int]], str]
"""From token ids to text; who makes one decides about special tokens."""

NO_PARENT = -1

GOLD_SEPARATOR: Final = "\x1f"
"""Stands between the texts of `Problem.answer` where several gold answers are acceptable.

Any one of them is right. It is the ASCII unit separator, which loaders refuse inside an answer, so
an answer without it is exactly one gold. Example: "1/2\x1f0.5" accepts `1/2` and `0.5`.
"""


class Kind(IntEnum):
    """What a segment's tokens are. Only THOUGHT and ANSWER tokens are sampled, hence trained."""

    PROMPT = 0
    """The problem, rendered through the chat template."""
    THOUGHT = 1
    """Sampled reasoning, a self-emitted end-of-thought token included."""
    ANSWER = 2
    """Sampled text after the thought was closed, EOS included."""
    OBSERVATION = 3
    """What an environment answered between two turns."""
    FORCED = 4
    """Text the environment inserted (a forced end of thought, an answer header)."""

    @property
    def sampled(self) -> bool:
        """True for kinds the policy sampled: they carry log-probs and are trained."""
        return self in (Kind.THOUGHT, Kind.ANSWER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One question with its gold answer.

    Example: Problem(id="arith-17", text="3+8-2", answer="9", difficulty=2.0)
    """

    id: str
    text: str
    answer: str
    """Gold answer as text, several joined by GOLD_SEPARATOR; compared by rlsys.grading.compare."""
    difficulty: float | None = None
    """Larger is harder; None where the source does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeSeed:
    """What an episode of several turns starts from: all that its environment asks follows from it.

    Example: EpisodeSeed(seed=7)
    """

    seed: int

    @property
    def id(self) -> str:
        """The seed as text, as reports name it."""
        return str(self.seed)

    @property
    def difficulty(self) -> float | None:
        """None: an episode may ask questions of every difficulty."""
        return None


Task = Problem | EpisodeSeed
"""What a group of episodes is rolled out from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """Ask an engine to continue `token_ids`, `n` times."""

    token_ids: Tokens
    n: int
    max_tokens: int
    stop_token_ids: tuple[int, ...]
    """Generation ends after any of these; the stop token is kept in the completion."""
    temperature: float
    seed: int | None
    """Completion i of the n samples under seed + i; None lets the engine choose."""
    engine: int | None = None
    """Engine that already holds this prefix in its cache, or None for the least loaded one."""
    top_logprobs: int = 0
    """Most likely tokens returned at every position, beside the sampled one; at most 20."""


class Candidates(NamedTuple):
    """The k most likely tokens at each of L sampled positions, the most likely first."""

    token_ids_LK: NDArray[np.int32]
    logprobs_LK: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One sampled continuation, exactly as the engine sampled it."""

    token_ids: Tokens
    logprobs: Floats
    """[len(token_ids)] log-probs at the sampling temperature, from the weights that sampled."""
    stopped: bool
    """True if a stop token ended it, False if max_tokens did."""
    versions: tuple[int, int]
    """Policy version that sampled the first and the last token."""
    engine: int
    """Index of the engine in its pool."""
    candidates: Candidates | None = None
    """None unless the request asked for `top_logprobs`."""
    cached_tokens: int = 0
    """Tokens of the request that the engine's prefix cache held."""
    cache_block: int = 1
    """The cache holds whole blocks of so many tokens."""


class Generator(Protocol):
    """Whatever continues token sequences: an engine, a pool of them, or a fake in a test."""

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[list[Completion]]:
        """Return the n completions of every request, in request order."""
        ...


class Verdict(IntEnum):
    """The result of grading. INVALID (error or time-out) is counted apart from WRONG."""

    WRONG = 0
    RIGHT = 1
    INVALID = 2


class GradingRequest(NamedTuple):
    """A response text and the gold answer it is compared with."""

    response: str
    gold: str


class Grader(Protocol):
    """Whatever compares responses with gold answers."""

    async def grade(self, requests: Sequence[GradingRequest]) -> list[Verdict]:
        """Return one verdict per request, in order. Never raises for what the text holds."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A run of tokens of one kind that hangs off a prefix of its parent.

    Example: an answer at budget 16 is Segment(parent=2, cut=3, kind=Kind.ANSWER, ...) where segment
    2 is the forced closing of three tokens: Segment(parent=1, cut=16, kind=Kind.FORCED, ...).
    """

    parent: int
    """Index of the parent in Episode.segments (always smaller than the own one), or NO_PARENT."""
    cut: int
    """How many of the parent's tokens come before this segment; 0 for the root."""
    kind: Kind
    token_ids: Tokens
    logprobs: Floats | None = None
    """[len(token_ids)] sampling log-probs; None unless kind.sampled."""
    versions: tuple[int, int] | None = None
    """First and last policy version that sampled it; None unless kind.sampled."""

    def __post_init__(self) -> None:
        if self.kind.sampled != (self.logprobs is not None):
            raise ValueError(f"a {self.kind.name} segment carries log-probs if and only if sampled")
        if self.logprobs is not None and len(self.logprobs) != len(self.token_ids):
            raise ValueError(f"{len(self.logprobs)} log-probs for {len(self.token_ids)} tokens")

    @classmethod
    def sampled(cls, completion: Completion, *, parent: int, cut: int, kind: Kind) -> Segment:
        """The segment of a completion, exactly as the engine sampled it."""
        return cls(
            parent=parent,
            cut=cut,
            kind=kind,
            token_ids=completion.token_ids,
            logprobs=completion.logprobs,
            versions=completion.versions,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One tree of segments (segment 0 is the prompt) with the scores of its answers.

    `thoughts`, `revision` and `turns` are filled in by the environments that know them.
    """

    segments: tuple[Segment, ...]
    scores: Floats
    """[n] score of every answer, in slot order (anytime: n = budgets * answers)."""
    answer_segments: NDArray[np.int32]
    """[n] index into `segments` of the answer behind each score."""
    splits: NDArray[np.int32]
    """[n] number of the distinct cut each answer hangs from; see brpo.truncation_plan."""
    verdicts: NDArray[np.int8]
    """[n] Verdict of each answer."""
    thoughts: tuple[ThoughtRecord, ...] = ()
    """[n] The thought before each answer; empty where reflections are not counted."""
    revision: RevisionRecord | None = None
    """Of the thought, in a run that revises."""
    turns: tuple[TurnRecord, ...] = ()
    """[n] What the environment returned for each reply; empty for single thoughts."""

    def sampled_tokens(self) -> int:
        """Tokens the policy sampled in this episode."""
        return sum(len(s.token_ids) for s in self.segments if s.kind.sampled)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """G episodes of one problem under one environment seed: the unit of every baseline."""

    index: int
    """Place in the admission order of the run; the next group to train is the smallest one."""
    task: Task
    episodes: tuple[Episode, ...]
    """Fewer than G where the environment lost some; see rlsys.errors.EpisodeLost."""
    times: RevisionTimes | None = None
    """None in a run that does not revise."""

    @property
    def versions(self) -> tuple[int, int]:
        """Oldest and newest policy version that sampled any token of the group."""
        spans = [s.versions for e in self.episodes for s in e.segments if s.versions is not None]
        return min(first for first, _ in spans), max(last for _, last in spans)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """An episode ready for training: its segments and a number per token of each sampled one.

    Supervised rows use the same record: advantage 1 on response tokens, the `nll` objective.
    """

    segments: tuple[Segment, ...]
    advantages: tuple[Floats | None, ...]
    """Per segment [len(token_ids)], or None where nothing is trained."""
    weights: tuple[float, ...] = field(default=())
    """Per segment, a factor on its loss (summary_weight); empty means 1 everywhere."""
    rows: tuple[NDArray[np.int32] | None, ...] = field(default=())
    """Per segment [len(token_ids)], how many plain rows contain this token; None or empty means 1.
    It is 2 where an original and its revision share the kept thought. The advantage there is the
    mean of both, so that the tree trains exactly like the two rows side by side."""

    @property
    def num_tokens(self) -> int:
        """Tokens the packed tree occupies."""
        return sum(len(s.token_ids) for s in self.segments)

    @property
    def num_trained(self) -> int:
        """Tokens with an advantage, counted once for each of the `rows` they stand for."""
        rows = self.rows or (None,) * len(self.segments)
        return sum(
            len(a) if r is None else int(r.sum())
            for a, r in zip(self.advantages, rows, strict=True)
            if a is not None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReport:
    """Numbers of one finished group of G episodes: what the driver sees, never tokens."""

    index: int
    problem_id: str
    difficulty: float | None
    versions: tuple[int, int] | None
    """Oldest and newest policy version among the sampled tokens; None if nothing was sampled."""
    scores_G: Floats
    """How well each episode did, from 0 (nothing right) to 1 (everything right)."""
    numbers: Mapping[str, Floats]
    """Metric name to values, one per episode, reply or whatever the metric is a mean of."""
    invalid: int
    """Answers whose grading failed or timed out."""
    answers: int
    """Answers graded in all."""
    sampled_tokens: int
    sizes: tuple[tuple[int, int], ...]
    """Per sample, tokens it packs to and tokens it trains."""
    example: dict[str, Any]
    """One episode in words; empty if the group has none."""


TaskT_contra = TypeVar("TaskT_contra", contravariant=True)


class Environment(Protocol[TaskT_contra]):
    """Rolls out groups of episodes and reports them.

    One instance rolls out training groups, another one evaluation groups. `rlsys.environments.base`
    has the part of the interface that makes instances and checks their input before Ray starts.
    """

    async def rollout(self, index: int, task: TaskT_contra) -> Group:
        """Roll out the group at this place in the admission order.

        The same index, task and weights give the same group: every request's seed follows from the
        run's seed and the index. An episode that the environment loses is missing from the group;
        any other error ends the run.
        """
        ...

    def report(self, group: Group, samples: Sequence[Sample]) -> GroupReport:
        """Return the numbers of a group; `samples` is empty for a group that is not trained on."""
        ...
