"""Reports that the driver gets about a group: numbers and one readable episode, never tokens.

Token arrays stay in the object store. The driver handles every group of a run, so it must not copy
them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from rlsys.types import (
    Decode,
    Episode,
    Floats,
    Group,
    GroupReport,
    Problem,
    Sample,
    Verdict,
)

__all__ = ["LOST", "GroupReport", "base_report", "readable_task", "report_episodes", "verdict_name"]

LOST = "episodes/lost"
"""Metric: share of episodes that were lost in every attempt."""


def base_report(
    group: Group,
    scores_G: NDArray[np.floating],
    numbers: Mapping[str, Floats],
    samples: Sequence[Sample],
    example: dict[str, object],
) -> GroupReport:
    """Return a report with the fields that all kinds of groups compute in the same way."""
    episodes = group.episodes
    sampled = sum(e.sampled_tokens() for e in episodes)
    return GroupReport(
        index=group.index,
        problem_id=group.task.id,
        difficulty=group.task.difficulty,
        versions=group.versions if sampled else None,
        scores_G=scores_G.astype(np.float32),
        numbers=numbers,
        invalid=sum(int((e.verdicts == Verdict.INVALID).sum()) for e in episodes),
        answers=sum(len(e.scores) for e in episodes),
        sampled_tokens=sampled,
        sizes=tuple((s.num_tokens, s.num_trained) for s in samples),
        example=example,
    )


def report_episodes(group: Group, samples: Sequence[Sample], decode: Decode) -> GroupReport:
    """Reduce a group of any environment: mean scores, lengths, and the first episode as text.

    `score` is the mean score of an episode, `response/length` the number of its sampled tokens.
    """
    episodes = group.episodes
    scores_G = np.array([e.scores.mean() for e in episodes], np.float32)
    lengths = [float(e.sampled_tokens()) for e in episodes]
    numbers = {"score": scores_G, "response/length": np.array(lengths, np.float32)}
    example = _readable(group, episodes[0], decode) if episodes else {}
    return base_report(group, scores_G, numbers, samples, example)


def readable_task(group: Group) -> dict[str, object]:
    """Return the task of the group as text: problem and gold answer, or the seed."""
    task = group.task
    if isinstance(task, Problem):
        return {"group": group.index, "problem": task.text, "gold": task.answer}
    return {"group": group.index, "seed": task.seed}


def verdict_name(verdict: int) -> str:
    """Return `right`, `wrong` or `invalid`."""
    return Verdict(int(verdict)).name.lower()


def _readable(group: Group, episode: Episode, decode: Decode) -> dict[str, object]:
    return {
        **readable_task(group),
        "segments": [
            {"kind": segment.kind.name.lower(), "text": decode(segment.token_ids.tolist())}
            for segment in episode.segments
        ],
        "scores": episode.scores.tolist(),
        "verdicts": [verdict_name(v) for v in episode.verdicts],
    }
