"""From a group of scored episodes to samples: an advantage for every sampled token.

Every method is one function `samples(group, config)`. It may assume the tree that its environments
build. In an anytime episode segment 0 is the prompt and segment 1 the thought; forced text and
answers follow the thought at its cuts. A dialogue is one chain of segments, in which answers and
observations alternate.

Shapes: G episodes, M budgets, A answers per budget, N = M * A answers of an episode, L tokens of
its thought, T turns of the longest dialogue.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rlsys.algorithms import brpo, ddca, dler, grpo, lcpo, overlong, rea, sgrpo, turns
from rlsys.algorithms.reflection.advantages import RIGHT
from rlsys.algorithms.tree_samples import (
    THOUGHT,
    answers_only,
    thought_and_answers,
    untrained,
    whole_episode,
)
from rlsys.config import (
    AnytimeConfig,
    BrpoConfig,
    DdcaConfig,
    DistillConfig,
    DlerConfig,
    GrpoConfig,
    LcpoConfig,
    ReaConfig,
    ReinforceConfig,
    RunConfig,
    SgrpoConfig,
    TurnGrpoConfig,
    plugins,
)
from rlsys.types import Episode, Group, Sample


class Algorithm(Protocol):
    """Interface of the class that `algorithm.method: package.module:Class` names.

    The class also has a `Config`; see rlsys.config.plugins.
    """

    @staticmethod
    def samples(group: Group, config: RunConfig) -> tuple[Sample, ...]:
        """Return one sample per episode, in order. The group has at least one episode."""
        ...


def build_samples(group: Group, config: RunConfig) -> tuple[Sample, ...]:
    """Return one sample per episode, in order; none for an empty group."""
    # A group is empty if its environment lost every episode. Methods need not handle that.
    if not group.episodes:
        return ()
    # First, because the settings of a plugin match no case of `_method_samples`.
    outside: type[Algorithm] | None = plugins.algorithm_class(config)
    samples = _method_samples(group, config) if outside is None else outside.samples(group, config)
    return tuple(
        untrained(sample) if episode.masked else sample
        for episode, sample in zip(group.episodes, samples, strict=True)
    )


def _method_samples(group: Group, config: RunConfig) -> tuple[Sample, ...]:
    match config.algorithm:
        case BrpoConfig() as algorithm:
            return brpo_samples(group, algorithm, config)
        case (
            GrpoConfig() | DdcaConfig() | DlerConfig() | LcpoConfig() | ReinforceConfig() as single
        ):
            return single_score_samples(group, single, config.environment.longest_episode)
        case DistillConfig():
            # The learner adds the teacher's advantages, token by token.
            return tuple(whole_episode(episode, 0.0) for episode in group.episodes)
        case SgrpoConfig():
            assert isinstance(config.environment, AnytimeConfig)
            return sgrpo_samples(group, config.environment.budgets)
        case ReaConfig() as algorithm:
            return rea.rea_samples(group, algorithm, revised=config.revision is not None)
        case TurnGrpoConfig() as algorithm:
            return turn_samples(group, algorithm)


def brpo_samples(group: Group, algorithm: BrpoConfig, config: RunConfig) -> tuple[Sample, ...]:
    """Thought tokens get the advantage of their budget slot; answers are compared per cut."""
    environment = config.environment
    assert isinstance(environment, AnytimeConfig)
    budgets, answers = environment.budgets, environment.answers
    scores_GN = np.stack([episode.scores for episode in group.episodes]).astype(np.float64)
    splits_GN = np.stack([episode.splits for episode in group.episodes])
    by_budget = algorithm.coefficients == "budget"
    thought_GM = brpo.thought_advantages(
        scores_GN.reshape(len(scores_GN), len(budgets), answers).mean(axis=2),
        brpo.prior(algorithm.prior, budgets),
        mode=algorithm.mode,
        decay=algorithm.decay,
        coefficients=brpo.budget_coefficients(budgets) if by_budget else None,
    )
    if algorithm.shaping is not None:
        # Length and reflections belong to the whole thought, so every slot gets the same amount.
        # Answers do not get it: their tokens come after the thought and cannot change it.
        thought_GM += rea.shaping_advantages(group, algorithm.shaping)[:, None]
    answer_GN = brpo.answer_advantages(
        scores_GN, splits_GN, answers, method=algorithm.answer_method
    )
    samples = []
    for episode, thought_M, answer_N in zip(group.episodes, thought_GM, answer_GN, strict=True):
        slot_L = token_slots(episode, budgets)
        samples.append(
            thought_and_answers(episode, thought_M[slot_L], answer_N, algorithm.summary_weight)
        )
    return tuple(samples)


def token_slots(episode: Episode, budgets: Sequence[int]) -> NDArray[np.int64]:
    """Return the budget slot of every token of the thought, int64[L].

    Token t influences the answers at every budget above t. The smallest of these budgets names the
    slot of the token.
    """
    length = len(episode.segments[THOUGHT].token_ids)
    return np.searchsorted(budgets, np.arange(length), side="right")


SingleScore = GrpoConfig | DdcaConfig | DlerConfig | LcpoConfig | ReinforceConfig


def single_score_samples(
    group: Group, algorithm: SingleScore, longest_episode: int
) -> tuple[Sample, ...]:
    """An episode has one score, its reward. All its sampled tokens share one advantage."""
    rewards_G = np.concatenate([episode.scores for episode in group.episodes]).astype(np.float64)
    lengths_G = np.array([episode.sampled_tokens() for episode in group.episodes])
    match algorithm:
        case GrpoConfig(scale=scale, overlong=rule):
            if rule is not None:
                limit = rule.limit or longest_episode
                rewards_G += overlong.penalties(
                    lengths_G, limit=limit, buffer=rule.buffer, penalty=rule.penalty
                )
            advantages_G = grpo.advantages(rewards_G, scale=scale)
        case DdcaConfig(beta=beta):
            advantages_G = ddca.advantages(rewards_G, rewards_G > RIGHT, lengths_G, beta=beta)
        case DlerConfig(length_limit=longest, easy_limits=easy):
            limit = dler.group_limit(rewards_G > RIGHT, limit=longest, easy_limits=easy)
            advantages_G = dler.group_advantages(rewards_G, lengths_G, limit=limit)
        case LcpoConfig(target_length=target, alpha=alpha, scale=scale):
            rewards_G = lcpo.rewards(rewards_G, lengths_G, target=target, alpha=alpha)
            advantages_G = grpo.advantages(rewards_G, scale=scale)
        case ReinforceConfig(baseline="group"):
            advantages_G = grpo.advantages(rewards_G)
        case ReinforceConfig():
            # The learner's ranks subtract the mean of the batch: `normalise_advantages: whiten`.
            advantages_G = rewards_G
    return tuple(map(whole_episode, group.episodes, advantages_G))


def sgrpo_samples(group: Group, budgets: Sequence[int]) -> tuple[Sample, ...]:
    """Thought tokens by the exits they come before, every answer by its own exit."""
    right_GM = np.stack([episode.scores for episode in group.episodes]) > RIGHT
    splits_GM = np.stack([episode.splits for episode in group.episodes])
    answer_GM = sgrpo.exit_advantages(sgrpo.exit_rewards(right_GM, splits_GM))
    thought_GM = sgrpo.thought_advantages(answer_GM)
    return tuple(
        thought_and_answers(episode, thought_M[token_slots(episode, budgets)], answer_M, 1.0)
        for episode, thought_M, answer_M in zip(group.episodes, thought_GM, answer_GM, strict=True)
    )


def turn_samples(group: Group, algorithm: TurnGrpoConfig) -> tuple[Sample, ...]:
    """Every answer of a dialogue has its own advantage; its score is the reward of its turn."""
    most = max(len(episode.scores) for episode in group.episodes)
    # NaN and not 0 after the end of an episode: a missing turn must not count as a bad turn in the
    # mean of the others.
    rewards_GT = np.full((len(group.episodes), most), np.nan)
    for rewards_T, episode in zip(rewards_GT, group.episodes, strict=True):
        rewards_T[: len(episode.scores)] = episode.scores
    advantages_GT = turns.advantages(
        rewards_GT, credit=algorithm.credit, discount=algorithm.discount, scale=algorithm.scale
    )
    return tuple(
        answers_only(episode, advantages_T[: len(episode.scores)], answer_weight=1.0)
        for episode, advantages_T in zip(group.episodes, advantages_GT, strict=True)
    )
