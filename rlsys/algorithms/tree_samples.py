"""Assign advantages to the tokens of an episode's tree; all methods use these functions.

Prompt, forced text and observations get no advantage. The policy did not choose these tokens, so
training on them would change it towards text that it never sampled.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from rlsys.types import Episode, Floats, Kind, Sample

THOUGHT = 1
"""Index of the thought in the segments of an episode with one thought."""


def has_signal(samples: Iterable[Sample]) -> bool:
    """Return True if any token of a group has an advantage other than 0."""
    return any(
        advantages is not None and bool(np.any(advantages))
        for sample in samples
        for advantages in sample.advantages
    )


def whole_episode(episode: Episode, advantage: float) -> Sample:
    """One advantage on every token that the policy sampled."""
    advantages = [
        np.full(len(s.token_ids), advantage, np.float32) if s.kind.sampled else None
        for s in episode.segments
    ]
    return Sample(segments=episode.segments, advantages=tuple(advantages))


def untrained(sample: Sample) -> Sample:
    """The same tree with no token trained."""
    return replace(sample, advantages=(None,) * len(sample.segments), rows=())


def answers_only(episode: Episode, answer_N: Iterable[float], answer_weight: float) -> Sample:
    """One advantage on each of the N answers; `answer_weight` multiplies the loss of answers."""
    advantages: list[Floats | None] = [None] * len(episode.segments)
    for index, advantage in zip(episode.answer_segments, answer_N, strict=True):
        tokens = len(episode.segments[index].token_ids)
        advantages[index] = np.full(tokens, advantage, dtype=np.float32)
    return Sample(
        segments=episode.segments,
        advantages=tuple(advantages),
        weights=tuple(
            answer_weight if segment.kind is Kind.ANSWER else 1.0 for segment in episode.segments
        ),
    )


def thought_and_answers(
    episode: Episode,
    thought_L: NDArray[np.float64],
    answer_N: Iterable[float],
    answer_weight: float,
) -> Sample:
    """An advantage on each of the L tokens of the thought, and one on each of the N answers."""
    sample = answers_only(episode, answer_N, answer_weight)
    advantages = list(sample.advantages)
    advantages[THOUGHT] = thought_L.astype(np.float32)
    return replace(sample, advantages=tuple(advantages))
