"""REA-RL's episodes: a thought, its own answer, and an answer from where it first knew.

The frozen reflection model finds the cut while the policy still answers; then the policy answers
once more from there (arXiv 2505.19862). The revision is a branch of the thought's tree: what it
keeps is the sampled ids, which the engine that sampled them has in its cache, the end of the
thought is forced, and only the revised answer is new.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from rlsys.algorithms.reflection import Strength
from rlsys.environments.anytime import Answer, AnytimeEnvironment, Fork
from rlsys.reflection.detector import Detection, Detector, SampledThought
from rlsys.types import Completion, Episode, Group, Problem, Tokens

ORIGINAL, REVISION = 0, 1
"""Answers of an episode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Revising:
    """How thoughts are revised."""

    detector: Detector
    strength: Strength
    answer_tokens: int


class _Revisions(NamedTuple):
    """What became of a group's thoughts."""

    detections: list[Detection]
    forks: list[Fork]
    """Of the thoughts that are revised."""
    answers: list[list[Answer]]
    detected_s: float
    """Seconds that detection took."""
    ended: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReflectionEnvironment:
    """Grows groups of originals and revisions."""

    originals: AnytimeEnvironment
    """One budget, one answer, and reflections counted."""
    revising: Revising | None
    """None grows originals only."""

    async def run_group(self, index: int, problem: Problem, prompt: Tokens) -> Group:
        """Grow the thoughts, then every own answer and meanwhile every revision."""
        grower, started = self.originals, time.monotonic()
        thoughts = await grower.sample_thoughts(index, prompt)
        forks = [f for g, t in enumerate(thoughts) for f in grower.forks(g, t)]
        answering = grower.sample_answers(index, problem, prompt, thoughts, forks)
        if self.revising is None:
            answers = await answering
            return grower.group(index, problem, prompt, thoughts, forks, answers)

        async def answer() -> tuple[list[list[Answer]], float]:
            return await answering, time.monotonic()

        (answers, answered), revised = await asyncio.gather(
            answer(), self._revise(self.revising, index, problem, prompt, thoughts)
        )
        group = grower.group(
            index, problem, prompt, thoughts, forks + revised.forks, answers + revised.answers
        )
        ended = max(answered, revised.ended)
        times = {
            "seconds": ended - started,
            "detection_s": revised.detected_s,
            # What the group waited for revisions after all else was there.
            "revision_s": ended - answered,
        }
        cached = {
            fork.episode: _cached_share(answer.completion, len(prompt) + fork.cut)
            for fork, (answer,) in zip(revised.forks, revised.answers, strict=True)
        }
        episodes = (
            _with_facts(episode, times | _facts(detection), cached.get(number))
            for number, (episode, detection) in enumerate(
                zip(group.episodes, revised.detections, strict=True)
            )
        )
        return replace(group, episodes=tuple(episodes))

    async def _revise(
        self,
        revising: Revising,
        index: int,
        problem: Problem,
        prompt: Tokens,
        thoughts: Sequence[Completion],
    ) -> _Revisions:
        grower, started = self.originals, time.monotonic()
        sampled = [SampledThought(problem.text, grower.reasoning(t)) for t in thoughts]
        detections = await revising.detector.detect(sampled)
        detected_s = time.monotonic() - started
        forced = grower.forced(truncated=True)
        forks = [
            Fork(number, REVISION, kept, 1, forced, revising.answer_tokens)
            for number, detection in enumerate(detections)
            if (kept := detection.kept_tokens(revising.strength)) is not None
        ]
        answers = await grower.sample_answers(index, problem, prompt, thoughts, forks)
        return _Revisions(detections, forks, answers, detected_s, time.monotonic())


def _facts(detection: Detection) -> dict[str, float | str]:
    reading = detection.reading
    return {
        "outcome": detection.outcome.value,
        "missing_labels": 0 if reading is None else reading.missing,
        "extra_labels": 0 if reading is None else reading.extra,
    }


def _with_facts(
    episode: Episode, facts: Mapping[str, float | str], cached: float | None
) -> Episode:
    """Facts of the thought with its original, the cache's share with its revision."""
    original, *revisions = episode.facts
    more = [{**r, "cached_share": cached} for r in revisions if cached is not None]
    return replace(episode, facts=({**original, **facts}, *more))


def _cached_share(answer: Completion, shared: int) -> float:
    """Share of the `shared` tokens of prompt and kept thought that the engine had in its cache.

    Counted in the cache's whole blocks, because it keeps no others; 1 if there is none.
    """
    whole = shared // answer.cache_block * answer.cache_block
    return min(answer.cached_tokens / whole, 1.0) if whole else 1.0
