from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from numpy.typing import NDArray
from sample_parts import advantages_of

from rlsys.algorithms.brpo import truncation_plan
from rlsys.algorithms.samples import build_samples
from rlsys.algorithms.tree_samples import has_signal
from rlsys.config import (
    AnytimeConfig,
    BrpoConfig,
    DdcaConfig,
    DistillationConfig,
    DistillConfig,
    DlerConfig,
    GrpoConfig,
    LcpoConfig,
    ModelConfig,
    OverlongConfig,
    ReinforceConfig,
    RunConfig,
    SgrpoConfig,
)
from rlsys.config.algorithms import AlgorithmConfig
from rlsys.types import NO_PARENT, Episode, Group, Kind, Problem, Sample, Segment

PROMPT_TOKENS, CLOSING_TOKENS, HEADER_TOKENS = 3, 4, 2


def run_config(budgets: tuple[int, ...], answers: int, algorithm: AlgorithmConfig) -> RunConfig:
    return RunConfig(
        environment=AnytimeConfig(budgets=budgets, answers=answers), algorithm=algorithm
    )


def sampled(parent: int, cut: int, kind: Kind, tokens: int) -> Segment:
    return Segment(
        parent=parent,
        cut=cut,
        kind=kind,
        token_ids=np.zeros(tokens, np.int32),
        logprobs=np.zeros(tokens, np.float32),
        versions=(0, 0),
    )


def forced(parent: int, cut: int, kind: Kind, tokens: int) -> Segment:
    return Segment(parent=parent, cut=cut, kind=kind, token_ids=np.zeros(tokens, np.int32))


def rolled_out(
    length: int,
    closed: bool,
    budgets: tuple[int, ...],
    scores: list[int],
    header_tokens: int = HEADER_TOKENS,
) -> Episode:
    """An anytime episode; the answer behind flat score i has i + 1 tokens."""
    segments = [
        forced(NO_PARENT, 0, Kind.PROMPT, PROMPT_TOKENS),
        sampled(0, PROMPT_TOKENS, Kind.THOUGHT, length),
    ]
    places, splits = [], []
    for branch in truncation_plan(length, closed, budgets, len(scores) // len(budgets)):
        inserted = header_tokens + CLOSING_TOKENS * branch.truncated
        parent, cut = 1, branch.cut
        if inserted:
            segments.append(forced(1, branch.cut, Kind.FORCED, inserted))
            parent, cut = len(segments) - 1, inserted
        for _ in range(branch.answers):
            places.append(len(segments))
            splits.append(branch.split)
            segments.append(sampled(parent, cut, Kind.ANSWER, len(places)))
    return Episode(
        segments=tuple(segments),
        scores=np.array(scores, np.float32),
        answer_segments=np.array(places, np.int32),
        splits=np.array(splits, np.int32),
        verdicts=np.array(scores, np.int8),
    )


def group_of(*episodes: Episode) -> Group:
    return Group(index=0, task=Problem(id="p", text="1+1", answer="2"), episodes=episodes)


def early_finish(budgets: tuple[int, int, int, int] = (2, 4, 6, 8)) -> Group:
    """Thought 0 closed itself after 5 tokens, thought 1 ran out at 8."""
    return group_of(
        rolled_out(5, True, budgets, [0, 0, 0, 1, 1, 1, 0, 1]),
        rolled_out(8, False, budgets, [0, 0, 0, 0, 1, 0, 1, 1]),
    )


def answers_of(sample: Sample, episode: Episode) -> list[NDArray[np.float32]]:
    return [advantages_of(sample, index) for index in episode.answer_segments]


def test_brpo_samples_of_an_early_finish() -> None:
    group = early_finish()
    config = run_config((2, 4, 6, 8), 2, BrpoConfig(summary_weight=0.125))
    samples = build_samples(group, config)
    assert_allclose(
        advantages_of(samples[0], 1), [0.0625, 0.0625, 0.171875, 0.171875, 0.104167], atol=1e-6
    )
    assert_allclose(
        advantages_of(samples[1], 1),
        [-0.0625, -0.0625, 0.046875, 0.046875, 0.1875, 0.1875, 0.149554, 0.149554],
        atol=1e-6,
    )
    expected_GN = [[0, 0, -0.5, 0.5, 0.25, 0.25, -0.75, 0.25], [0, 0, 0, 0, 0.5, -0.5, 0, 0]]
    for sample, episode, expected_N in zip(samples, group.episodes, expected_GN, strict=True):
        assert sample.segments is episode.segments
        for slot, advantages_T in enumerate(answers_of(sample, episode)):
            assert_allclose(advantages_T, [expected_N[slot]] * (slot + 1))
    # Segments of thought 0: prompt, thought, then each cut's forced text and answers.
    answer = [0.125]
    assert samples[0].weights == (
        *(1.0, 1.0, 1.0, *answer * 2),
        *(1.0, *answer * 2),
        *(1.0, *answer * 4),
    )


def test_only_sampled_tokens_are_trained() -> None:
    group = early_finish()
    samples = build_samples(group, run_config((2, 4, 6, 8), 2, BrpoConfig()))
    for sample, episode in zip(samples, group.episodes, strict=True):
        assert sample.num_trained == episode.sampled_tokens()
        for segment, advantages_T in zip(sample.segments, sample.advantages, strict=True):
            if advantages_T is None:
                assert segment.kind in (Kind.PROMPT, Kind.FORCED)
            else:
                assert segment.kind in (Kind.THOUGHT, Kind.ANSWER)
                assert advantages_T.dtype == np.float32


def test_coefficients_by_budget_and_decay_of_earlier_scores() -> None:
    budgets = (1, 2, 8)
    group = group_of(
        rolled_out(8, False, budgets, [0, 0, 0, 1, 0, 1, 0, 1, 1, 1, 1, 1]),
        rolled_out(8, False, budgets, [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 1, 1]),
    )
    by_index, by_budget, undecayed = (
        build_samples(group, run_config(budgets, 4, algorithm))
        for algorithm in (BrpoConfig(), BrpoConfig(coefficients="budget"), BrpoConfig(decay=1.0))
    )
    assert_allclose(
        advantages_of(by_index[0], 1)[[0, 1, 2, 7]], [1 / 6, 0.194444, *[0.157407] * 2], atol=1e-6
    )
    assert_allclose(
        advantages_of(by_budget[0], 1)[[0, 1, 2, 7]], [1 / 6, 0.151042, *[0.111111] * 2], atol=1e-6
    )
    # Only the last slot has two earlier scores: V1 is the third of .375, their plain mean.
    assert_allclose(
        advantages_of(undecayed[0], 1)[[0, 1, 2, 7]], [1 / 6, 0.194444, *[1 / 6] * 2], atol=1e-6
    )


def test_answer_method_grpo_trains_the_last_answer_only() -> None:
    group = early_finish()
    samples = build_samples(group, run_config((2, 4, 6, 8), 2, BrpoConfig(answer_method="grpo")))
    first = answers_of(samples[0], group.episodes[0])
    assert all(not advantages_T.any() for advantages_T in first[:-1])
    assert_allclose(first[-1], np.full(8, 0.25))


def test_answers_may_hang_off_the_thought_itself() -> None:
    budgets = (2, 4)
    group = group_of(
        rolled_out(3, True, budgets, [0, 1], header_tokens=0),
        rolled_out(4, True, budgets, [1, 1], header_tokens=0),
    )
    samples = build_samples(group, run_config(budgets, 1, BrpoConfig(mode="v2only")))
    assert [segment.kind for segment in samples[0].segments] == [
        *(Kind.PROMPT, Kind.THOUGHT, Kind.FORCED, Kind.ANSWER),
        Kind.ANSWER,
    ]
    assert_allclose(advantages_of(samples[0], 1), [-0.25, -0.25, 0.0])
    assert_allclose(advantages_of(samples[1], 1), [0.25, 0.25, 0.0, 0.0])
    assert_allclose(advantages_of(samples[0], 3), [-0.5])
    assert_allclose(advantages_of(samples[0], 4), [0.0, 0.0])


@pytest.mark.parametrize(
    ("scale", "expected_G"),
    [
        ("none", [2 / 3, -1 / 3, -1 / 3]),
        ("std", [1.154501, -0.57725, -0.57725]),
        ("leave_one_out", [1, -0.5, -0.5]),
        ("mean", [2, -1, -1]),
    ],
)
def test_grpo_has_one_advantage_per_episode(
    scale: Literal["none", "std", "leave_one_out", "mean"], expected_G: list[float]
) -> None:
    group = group_of(
        rolled_out(5, True, (8,), [1]),
        rolled_out(8, False, (8,), [0]),
        rolled_out(8, True, (8,), [0]),
    )
    samples = build_samples(group, run_config((8,), 1, GrpoConfig(scale=scale)))
    for sample, expected in zip(samples, expected_G, strict=True):
        assert [a is None for a in sample.advantages] == [True, False, True, False]
        thought_T, answer_T = advantages_of(sample, 1), advantages_of(sample, 3)
        assert_allclose(thought_T, np.full(len(sample.segments[1].token_ids), expected), atol=1e-5)
        assert_allclose(answer_T, [expected], atol=1e-5)
        assert thought_T.dtype == answer_T.dtype == np.float32
        assert set(sample.weights) <= {1.0}


@pytest.mark.parametrize(
    ("algorithm", "expected_G"),
    [
        # Sampled tokens: 5 + 1, 8 + 1, 3 + 1 and 8 + 1. Right are the first two and the third:
        # their lengths 6, 9 and 4 have mean 19 / 3 and deviation 2.054805.
        (DdcaConfig(beta=0.0), [0.577349, 0.577349, 0.577349, -1.732047]),
        (DdcaConfig(beta=1.0), [0.604732, 0.360287, 0.767028, -1.732047]),
        (DlerConfig(length_limit=8), [0.5, -0.5, 0.5, -0.5]),
        # Penalties 0.5, 1, 0 and 1 leave rewards 0.5, 0, 1 and -1.
        (GrpoConfig(overlong=OverlongConfig(limit=8, buffer=4)), [0.375, -0.125, 0.875, -1.125]),
        # Distances 1, 4, 1 and 4.
        (LcpoConfig(target_length=5, alpha=0.1, scale="none"), [0.4, 0.1, 0.4, -0.9]),
        (ReinforceConfig(), [1, 1, 1, 0]),
        (ReinforceConfig(baseline="group"), [0.25, 0.25, 0.25, -0.75]),
        (DlerConfig(length_limit=5), [-0.25, -0.25, 0.75, -0.25]),
    ],
)
def test_length_counts_all_sampled_tokens_of_a_response(
    algorithm: AlgorithmConfig, expected_G: list[float]
) -> None:
    group = group_of(
        rolled_out(5, True, (8,), [1]),
        rolled_out(8, False, (8,), [1]),
        rolled_out(3, True, (8,), [1]),
        rolled_out(8, True, (8,), [0]),
    )
    samples = build_samples(group, run_config((8,), 1, algorithm))
    for sample, expected in zip(samples, expected_G, strict=True):
        assert [a is None for a in sample.advantages] == [True, False, True, False]
        thought_T, answer_T = advantages_of(sample, 1), advantages_of(sample, 3)
        assert_allclose(thought_T, np.full(len(sample.segments[1].token_ids), expected), atol=1e-5)
        assert_allclose(answer_T, [expected], atol=1e-5)


def test_distill_trains_every_sampled_token_without_its_score() -> None:
    budgets = (2, 4)
    group = group_of(rolled_out(3, True, budgets, [0, 1]))
    environment = AnytimeConfig(budgets=budgets, answers=1)
    taught = DistillationConfig(teacher=ModelConfig())
    config = RunConfig(environment=environment, algorithm=DistillConfig(), distillation=taught)
    (sample,) = build_samples(group, config)
    assert sample.num_trained == 3 + 1 + 2
    assert not has_signal([sample])


def test_sgrpo_puts_later_exits_on_a_thought_and_its_own_exit_on_an_answer() -> None:
    budgets = (2, 4, 6, 8)
    group = group_of(
        rolled_out(8, False, budgets, [0, 1, 0, 1]),
        # This thought ended after 5 tokens: its last two answers share the whole thought.
        rolled_out(5, True, budgets, [1, 0, 1, 1]),
        rolled_out(1, True, budgets, [1, 1, 0, 1]),
        rolled_out(8, False, budgets, [0, 0, 0, 0]),
    )
    samples = build_samples(group, run_config(budgets, 1, SgrpoConfig()))
    expected: list[tuple[list[float], list[float]]] = [
        ([0, 0, 0.375, 0.375, -0.25, -0.25, 0.125, 0.125], [-0.375, 0.625, -0.375, 0.125]),
        ([0, 0, -0.5, -0.5, 0], [0.5, -0.5, 0, 0]),
        ([0], [0.25, 0.25, -0.75, 0.25]),
        ([0] * 8, [0] * 4),
    ]
    for sample, episode, (thought_L, answer_M) in zip(
        samples, group.episodes, expected, strict=True
    ):
        assert_allclose(advantages_of(sample, 1), thought_L, atol=1e-7)
        for advantages_T, advantage in zip(answers_of(sample, episode), answer_M, strict=True):
            assert_allclose(advantages_T, np.full(len(advantages_T), advantage), atol=1e-7)
        assert sample.num_trained == episode.sampled_tokens()


def test_sgrpo_on_a_tree_is_the_loss_over_separate_exits() -> None:
    """Every exit is one sequence of its own: the thought up to its cut, and its answer."""
    budgets = (2, 4, 6, 8)
    scores, length = [1, 0, 1, 1], 7
    group = group_of(rolled_out(length, True, budgets, scores))
    (sample,) = build_samples(group, run_config(budgets, 1, SgrpoConfig()))
    rewards = [1, 0, 0.5, 0.25]
    plain_L = np.zeros(length)
    for budget, reward in zip(budgets, rewards, strict=True):
        plain_L[:budget] += reward - np.mean(rewards)
    assert_allclose(advantages_of(sample, 1), plain_L, atol=1e-7)


def test_an_empty_group_has_no_samples() -> None:
    assert build_samples(group_of(), RunConfig()) == ()


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(1, 45), st.booleans()), min_size=2, max_size=4),
    st.sampled_from([1, 2, 4]),
    st.data(),
)
def test_every_thought_token_belongs_to_its_slot(
    steps: list[int], thoughts: list[tuple[int, bool]], answers: int, data: st.DataObject
) -> None:
    """The slots of a thought cover its tokens once, in order, and the last one ends with it."""
    budgets = tuple(int(budget) for budget in np.cumsum(steps))
    num_slots = len(budgets) * answers
    flat = st.lists(st.integers(0, 1), min_size=num_slots, max_size=num_slots)
    group = group_of(
        *(
            rolled_out(min(length, budgets[-1]), closed, budgets, data.draw(flat))
            for length, closed in thoughts
        )
    )
    # Without a baseline a token's advantage is the mean score from its own slot on.
    config = run_config(budgets, answers, BrpoConfig(mode="none", prior="uniform"))
    for sample, episode in zip(build_samples(group, config), group.episodes, strict=True):
        score_M = episode.scores.reshape(len(budgets), answers).mean(axis=1)
        for token, advantage in enumerate(advantages_of(sample, 1)):
            slot = next(s for s, budget in enumerate(budgets) if token < budget)
            assert_allclose(advantage, score_M[slot:].sum() / len(budgets), atol=1e-6)
        assert sample.num_trained == episode.sampled_tokens()


def test_a_masked_episode_counts_in_the_baseline_and_is_not_trained() -> None:
    group = group_of(
        rolled_out(5, True, (8,), [1]),
        replace(rolled_out(8, False, (8,), [0]), masked=True),
        rolled_out(8, True, (8,), [0]),
    )
    first, masked, last = build_samples(group, run_config((8,), 1, GrpoConfig()))
    assert masked.num_trained == 0
    assert_allclose(advantages_of(first, 1), np.full(5, 2 / 3), atol=1e-6)
    assert_allclose(advantages_of(last, 1), np.full(8, -1 / 3), atol=1e-6)
    assert has_signal((first, masked))
    assert not has_signal((masked,))


def test_a_group_of_equal_scores_has_no_signal() -> None:
    equal = group_of(rolled_out(5, True, (8,), [1]), rolled_out(8, True, (8,), [1]))
    assert not has_signal(build_samples(equal, run_config((8,), 1, GrpoConfig(scale="std"))))
    # BRPO compares the budgets of one thought, so it has a signal where GRPO has none.
    brpo = run_config((2, 4, 6, 8), 2, BrpoConfig(mode="v1only"))
    assert has_signal(build_samples(early_finish(), brpo))
