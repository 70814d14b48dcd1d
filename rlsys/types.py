"""Data types shared by all parts of rlsys: frozen records of numpy arrays and plain values.

An episode is a tree of token segments. Every method consists of two parts: an environment, whose
rollouts build the tree, and an algorithm, which computes advantages from its scores. Packing, loss
and learner depend only on the tree.

Reading order: Problem -> GenerationRequest/Completion -> Segment -> (rlsys.records) -> Episode ->
Group -> Sample -> GroupReport -> Environment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from rlsys.records import AgentRecord as AgentRecord
from rlsys.records import Outcome as Outcome
from rlsys.records import RevisionRecord as RevisionRecord
from rlsys.records import RevisionTimes as RevisionTimes
from rlsys.records import ThoughtRecord as ThoughtRecord
from rlsys.records import TurnRecord as TurnRecord

Tokens = NDArray[np.int32]
Floats = NDArray[np.float32]

Decode = Callable[[Sequence[int]], str]
"""Converts token ids to text. Whether special tokens are included depends on the function."""

NO_PARENT = -1

GOLD_SEPARATOR: Final = "\x1f"
"""Separates the texts of `Problem.answer` if there are several gold answers.

A response is right if it equals any of them. The separator is the ASCII unit separator. Loaders
refuse it inside an answer, so an answer without it is exactly one gold answer. Example:
"1/2\x1f0.5" accepts `1/2` and `0.5`.
"""


class Kind(IntEnum):
    """The kind of a segment. Only THOUGHT and ANSWER are sampled, so only they are trained."""

    PROMPT = 0
    """The problem, rendered through the chat template."""
    THOUGHT = 1
    """Sampled reasoning, with the end-of-thought token if the policy sampled one."""
    ANSWER = 2
    """Sampled text after the end of the thought, EOS included."""
    OBSERVATION = 3
    """Text of the environment between two replies."""
    FORCED = 4
    """Text that the environment inserted (a forced end of thought, an answer header)."""

    @property
    def sampled(self) -> bool:
        """True for kinds that the policy sampled: they have log-probs and are trained."""
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
    """Larger is harder; None if the source does not state it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeSeed:
    """The start of an episode of several turns: the seed determines all questions of the episode.

    Example: EpisodeSeed(seed=7)
    """

    seed: int

    @property
    def id(self) -> str:
        """The seed as text, for reports."""
        return str(self.seed)

    @property
    def difficulty(self) -> float | None:
        """None: an episode may ask questions of every difficulty."""
        return None


Task = Problem | EpisodeSeed
"""The start of a group of episodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """A request to continue `token_ids` with `n` samples."""

    token_ids: Tokens
    n: int
    max_tokens: int
    stop_token_ids: tuple[int, ...]
    """Generation ends after any of these tokens; the completion includes the stop token."""
    temperature: float
    seed: int | None
    """Completion i of the n samples uses seed + i; with None the engine chooses."""
    engine: int | None = None
    """Engine whose cache holds this prefix, or None for the engine with the least load."""
    affinity: int | None = None
    """Requests of one number that run at the same time share an engine, and so their prefix."""
    top_logprobs: int = 0
    """Number of most likely tokens to return at every position, at most 20."""
    stop_text: str | None = None
    """Generation also ends after the token that completes this text; the completion includes it."""
    top_p: float = 1.0
    """Only the most likely tokens whose probabilities add up to this are sampled. Below 1 the
    log-probs are those of this smaller distribution, which the learner does not compute: such
    samples are for evaluations and must not be trained."""
    top_k: int | None = None
    """Only this many most likely tokens are sampled, for evaluations as well; None is all."""


class Candidates(NamedTuple):
    """The k most likely tokens at each of L sampled positions, the most likely first."""

    token_ids_LK: NDArray[np.int32]
    logprobs_LK: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One sampled continuation, exactly as the engine sampled it."""

    token_ids: Tokens
    logprobs: Floats
    """[len(token_ids)] log-probs at the sampling temperature, from the weights at sampling time."""
    stopped: bool
    """True if a stop token or the stop text ended the completion, False if max_tokens did."""
    versions: tuple[int, int]
    """Policy version that sampled the first and the last token."""
    engine: int
    """Index of the engine in its pool."""
    candidates: Candidates | None = None
    """None unless the request asked for `top_logprobs`."""
    cached_tokens: int = 0
    """Tokens of the request that the prefix cache of the engine held."""
    cache_block: int = 1
    """Block size of the cache in tokens; the cache holds whole blocks only."""


class Generator(Protocol):
    """Continues token sequences: an engine, a pool of engines, or a fake in a test."""

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[list[Completion]]:
        """Return the n completions of every request, in request order."""
        ...


class Verdict(IntEnum):
    """The result of grading. INVALID (error or time-out) is counted separately from WRONG."""

    WRONG = 0
    RIGHT = 1
    INVALID = 2


class GradingRequest(NamedTuple):
    """A response text and the gold answer to compare it with."""

    response: str
    gold: str


class Grader(Protocol):
    """Compares responses with gold answers."""

    async def grade(self, requests: Sequence[GradingRequest]) -> list[Verdict]:
        """Return one verdict per request, in order. No content of a response raises an error."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Consecutive tokens of one kind. They follow a prefix of the parent segment.

    Example: an answer at budget 16 is Segment(parent=2, cut=3, kind=Kind.ANSWER, ...) where segment
    2 is the forced closing of three tokens: Segment(parent=1, cut=16, kind=Kind.FORCED, ...).
    """

    parent: int
    """Index of the parent in Episode.segments, or NO_PARENT. A parent comes before its children."""
    cut: int
    """How many of the parent's tokens come before this segment; 0 for the root."""
    kind: Kind
    token_ids: Tokens
    logprobs: Floats | None = None
    """[len(token_ids)] sampling log-probs; None unless kind.sampled."""
    versions: tuple[int, int] | None = None
    """Policy versions that sampled the first and last token; None unless kind.sampled."""

    def __post_init__(self) -> None:
        if self.kind.sampled != (self.logprobs is not None):
            raise ValueError(f"a {self.kind.name} segment carries log-probs if and only if sampled")
        if self.logprobs is not None and len(self.logprobs) != len(self.token_ids):
            raise ValueError(f"{len(self.logprobs)} log-probs for {len(self.token_ids)} tokens")

    @classmethod
    def sampled(cls, completion: Completion, *, parent: int, cut: int, kind: Kind) -> Segment:
        """Return the segment of a completion, exactly as the engine sampled it."""
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

    `thoughts`, `revision`, `turns` and `agent` are set only by environments with such records.
    """

    segments: tuple[Segment, ...]
    scores: Floats
    """[n] score of every answer, in slot order (anytime: n = budgets * answers)."""
    answer_segments: NDArray[np.int32]
    """[n] index into `segments` of the answer behind each score."""
    splits: NDArray[np.int32]
    """[n] number of the distinct cut that each answer follows; see brpo.truncation_plan."""
    verdicts: NDArray[np.int8]
    """[n] Verdict of each answer."""
    thoughts: tuple[ThoughtRecord, ...] = ()
    """[n] The thought before each answer; empty if reflections are not counted."""
    revision: RevisionRecord | None = None
    """The revision of the thought; None in a run without revisions."""
    turns: tuple[TurnRecord, ...] = ()
    """[n] What the environment returned for each reply; empty for episodes with one thought."""
    agent: AgentRecord | None = None
    """What the agent did; None in an episode without one."""
    masked: bool = False
    """True: it counts in the baseline of its group, but no token of it is trained."""

    def sampled_tokens(self) -> int:
        """Return the number of tokens that the policy sampled in this episode."""
        return sum(len(s.token_ids) for s in self.segments if s.kind.sampled)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """G episodes of one problem or one environment seed. Every baseline is computed per group."""

    index: int
    """Position in the admission order of the run. Groups are trained in this order."""
    task: Task
    episodes: tuple[Episode, ...]
    """Fewer than G if the environment lost some; see rlsys.errors.EpisodeLost."""
    times: RevisionTimes | None = None
    """None in a run without revisions."""

    @property
    def versions(self) -> tuple[int, int]:
        """Oldest and newest policy version that sampled any token of the group."""
        spans = [s.versions for e in self.episodes for s in e.segments if s.versions is not None]
        return min(first for first, _ in spans), max(last for _, last in spans)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """An episode ready for training: its segments, and an advantage for every sampled token.

    Supervised rows use the same record: advantage 1 on response tokens, the `nll` objective.
    """

    segments: tuple[Segment, ...]
    advantages: tuple[Floats | None, ...]
    """Per segment [len(token_ids)], or None if the segment is not trained."""
    weights: tuple[float, ...] = field(default=())
    """Per segment, a factor on its loss (summary_weight); empty means 1 everywhere."""
    rows: tuple[NDArray[np.int32] | None, ...] = field(default=())
    """Per segment [len(token_ids)], how many plain rows contain this token; None or empty means 1.
    It is 2 if an original and its revision share the token. The advantage there is the mean of
    both, so that the tree trains exactly like the two separate rows."""

    @property
    def num_tokens(self) -> int:
        """Tokens of the packed tree."""
        return sum(len(s.token_ids) for s in self.segments)

    @property
    def num_trained(self) -> int:
        """Tokens with an advantage; a token counts once for each row that contains it."""
        rows = self.rows or (None,) * len(self.segments)
        return sum(
            len(a) if r is None else int(r.sum())
            for a, r in zip(self.advantages, rows, strict=True)
            if a is not None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReport:
    """Numbers of one finished group of G episodes, for the driver. Tokens are not part of it."""

    index: int
    problem_id: str
    difficulty: float | None
    versions: tuple[int, int] | None
    """Oldest and newest policy version among the sampled tokens; None if nothing was sampled."""
    scores_G: Floats
    """Score of each episode, from 0 (nothing right) to 1 (everything right)."""
    numbers: Mapping[str, Floats]
    """Values by metric name: one per episode, or per reply. The metric is their mean."""
    invalid: int
    """Answers whose grading failed or timed out."""
    answers: int
    """Number of graded answers."""
    sampled_tokens: int
    sizes: tuple[tuple[int, int], ...]
    """Per sample, its packed tokens and its trained tokens."""
    example: dict[str, object]
    """One episode as text; empty if the group has none."""
    signal: bool = True
    """False if no token of a training group has an advantage other than 0."""


TaskT_contra = TypeVar("TaskT_contra", contravariant=True)


class Environment(Protocol[TaskT_contra]):
    """Rolls out groups of episodes and reports them.

    One instance rolls out training groups, another one evaluation groups. The other part of the
    interface, in `rlsys.environments.base`, creates instances and checks their input.
    """

    async def rollout(self, index: int, task: TaskT_contra) -> Group:
        """Roll out the group at this position in the admission order.

        The seed of every request is derived from the seed of the run and from `index`, so the same
        index, task and weights give the same group. An episode that the environment loses is
        missing from the group; any other error ends the run.
        """
        ...

    def report(self, group: Group, samples: Sequence[Sample]) -> GroupReport:
        """Return the numbers of a group; `samples` is empty for an evaluation group."""
        ...
