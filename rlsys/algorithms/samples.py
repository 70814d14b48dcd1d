"""From a group of scored episodes to samples: a number on every sampled token.

Understands the trees of the anytime environment: segment 0 is the prompt, segment 1 the thought,
and the answers (with the forced text before them) hang off the thought at its cuts. A dialogue is
one trunk in which answers and observations take turns. Prompt, forced text and observations get no
advantage, so they are never trained.

Shapes: G episodes, M budgets, A answers per budget, N = M * A answers of an episode, L tokens of
its thought.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from rlsys.algorithms import brpo, grpo, rea, turns
from rlsys.config import AnytimeConfig, BrpoConfig, GrpoConfig, ReaConfig, RunConfig, TurnGrpoConfig
from rlsys.types import Episode, Floats, Group, Kind, Sample

THOUGHT = 1
"""Index of the thought in the segments of an anytime episode."""


def build_samples(group: Group, config: RunConfig) -> tuple[Sample, ...]:
    """Return one sample per episode, in order; none for an empty group."""
    if not group.episodes:
        return ()
    match config.algorithm:
        case BrpoConfig() as algorithm:
            return _brpo_samples(group, algorithm, config.anytime)
        case GrpoConfig() as algorithm:
            return _grpo_samples(group, algorithm)
        case ReaConfig() as algorithm:
            return rea.rea_samples(group, algorithm, revised=config.revision is not None)
        case TurnGrpoConfig() as algorithm:
            return _turn_samples(group, algorithm)


def _brpo_samples(
    group: Group, algorithm: BrpoConfig, environment: AnytimeConfig
) -> tuple[Sample, ...]:
    budgets, answers = environment.budgets, environment.answers
    scores_GN = np.stack([episode.scores for episode in group.episodes]).astype(np.float64)
    splits_GN = np.stack([episode.splits for episode in group.episodes])
    by_budget = algorithm.coefficients == "budget"
    thought_GM = brpo.thought_advantages(
        scores_GN.reshape(len(scores_GN), len(budgets), answers).mean(axis=2),
        brpo.prior(algorithm.prior, budgets),
        mode=algorithm.mode,
        coefficients=brpo.budget_coefficients(budgets) if by_budget else None,
    )
    if algorithm.shaping is not None:
        thought_GM += rea.shaping_advantages(group, algorithm.shaping)[:, None]
    answer_GN = brpo.answer_advantages(
        scores_GN, splits_GN, answers, method=algorithm.answer_method
    )
    samples = []
    for episode, thought_M, answer_N in zip(group.episodes, thought_GM, answer_GN, strict=True):
        length = len(episode.segments[THOUGHT].token_ids)
        slot_L = np.searchsorted(budgets, np.arange(length), side="right")
        samples.append(_sample(episode, thought_M[slot_L], answer_N, algorithm.summary_weight))
    return tuple(samples)


def _grpo_samples(group: Group, algorithm: GrpoConfig) -> tuple[Sample, ...]:
    """The reward is the score of the only answer; thought and answer share one advantage."""
    rewards_G = np.concatenate([episode.scores for episode in group.episodes])
    advantages_G = grpo.advantages(rewards_G, scale=algorithm.scale)
    return tuple(
        _sample(
            episode,
            np.full(len(episode.segments[THOUGHT].token_ids), advantage),
            (advantage,),
            answer_weight=1.0,
        )
        for episode, advantage in zip(group.episodes, advantages_G, strict=True)
    )


def _turn_samples(group: Group, algorithm: TurnGrpoConfig) -> tuple[Sample, ...]:
    """The score of an answer is the reward of its turn."""
    most = max(len(episode.scores) for episode in group.episodes)
    rewards_GT = np.full((len(group.episodes), most), np.nan)
    for rewards_T, episode in zip(rewards_GT, group.episodes, strict=True):
        rewards_T[: len(episode.scores)] = episode.scores
    advantages_GT = turns.advantages(
        rewards_GT, credit=algorithm.credit, discount=algorithm.discount, scale=algorithm.scale
    )
    return tuple(
        _answers_trained(episode, advantages_T[: len(episode.scores)], answer_weight=1.0)
        for episode, advantages_T in zip(group.episodes, advantages_GT, strict=True)
    )


def _sample(
    episode: Episode,
    thought_L: NDArray[np.float64],
    answer_N: Iterable[float],
    answer_weight: float,
) -> Sample:
    sample = _answers_trained(episode, answer_N, answer_weight)
    advantages = list(sample.advantages)
    advantages[THOUGHT] = thought_L.astype(np.float32)
    return replace(sample, advantages=tuple(advantages))


def _answers_trained(episode: Episode, answer_N: Iterable[float], answer_weight: float) -> Sample:
    """A sample with one advantage per answer and nothing else trained."""
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
