"""What the driver learns of a group: numbers and one readable episode, never tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlsys.environments.anytime import THOUGHT, AnytimeEnvironment, Decode
from rlsys.types import Episode, Floats, Group, Sample, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReport:
    """Numbers of one finished group of G episodes at m budgets."""

    index: int
    problem_id: str
    difficulty: float | None
    versions: tuple[int, int]
    """Oldest and newest policy version among the sampled tokens."""
    scores_GM: Floats
    """Mean score of the answers at each budget."""
    thought_lengths_G: NDArray[np.int32]
    closed_G: NDArray[np.bool_]
    """True where the policy ended the thought itself."""
    invalid: int
    """Answers whose grading failed or timed out."""
    answers: int
    """Answers graded in all."""
    sampled_tokens: int
    sizes: tuple[tuple[int, int], ...]
    """Per sample, tokens it packs to and tokens it trains."""
    example: dict[str, Any]
    """One episode in words."""


def report_group(
    group: Group,
    environment: AnytimeEnvironment,
    samples: Sequence[Sample],
    example: dict[str, Any],
) -> GroupReport:
    """Reduce a group to its report."""
    episodes = group.episodes
    shape = (len(episodes), len(environment.budgets), environment.answers)
    thoughts = [e.segments[THOUGHT].token_ids for e in episodes]
    end = environment.think.think_end_id
    return GroupReport(
        index=group.index,
        problem_id=group.problem.id,
        difficulty=group.problem.difficulty,
        versions=group.versions,
        scores_GM=np.stack([e.scores for e in episodes]).reshape(shape).mean(axis=2),
        thought_lengths_G=np.array([len(t) for t in thoughts], np.int32),
        closed_G=np.array([len(t) > 0 and t[-1] == end for t in thoughts]),
        invalid=sum(int((e.verdicts == Verdict.INVALID).sum()) for e in episodes),
        answers=sum(len(e.scores) for e in episodes),
        sampled_tokens=sum(e.sampled_tokens() for e in episodes),
        sizes=tuple((s.num_tokens, s.num_trained) for s in samples),
        example=example,
    )


def readable_episode(
    group: Group, environment: AnytimeEnvironment, decode: Decode
) -> dict[str, Any]:
    """The group's first episode in words: the thought, each cut, each answer and its score."""
    episode = group.episodes[0]
    thought = episode.segments[THOUGHT].token_ids.tolist()
    return {
        "group": group.index,
        "problem": group.problem.text,
        "gold": group.problem.answer,
        "thought": decode(thought),
        "thought_tokens": len(thought),
        "answers": [
            _readable_answer(episode, environment, slot, decode)
            for slot in range(len(episode.scores))
        ],
    }


def _readable_answer(
    episode: Episode, environment: AnytimeEnvironment, slot: int, decode: Decode
) -> dict[str, Any]:
    budget = environment.budgets[slot // environment.answers]
    answer = episode.segments[episode.answer_segments[slot]]
    return {
        "budget": budget,
        "cut": min(budget, len(episode.segments[THOUGHT].token_ids)),
        "text": decode(answer.token_ids.tolist()),
        "verdict": Verdict(int(episode.verdicts[slot])).name.lower(),
        "score": float(episode.scores[slot]),
    }
