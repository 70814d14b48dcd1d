from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from learner.batch import advantage_sums
from learner.plan import OptimizerStep, RankPlan
from rlsys.algorithms.dler import group_advantages, group_limit, truncated_rewards
from rlsys.algorithms.loss import advantage_scale
from rlsys.types import NO_PARENT, Kind, Sample, Segment


def test_long_responses_earn_nothing() -> None:
    assert_array_equal(truncated_rewards([1, 1, 0, 0.5], [10, 11, 3, 10], limit=10), [1, 0, 0, 0.5])


def test_hand_worked_advantages() -> None:
    assert_allclose(
        group_advantages([1, 1, 1, 0], [10, 99, 10, 10], limit=10), [0.5, -0.5, 0.5, -0.5]
    )


@pytest.mark.parametrize(
    ("right", "limit"),
    [([0, 0, 0, 1], 50), ([0, 0, 1, 1], 40), ([0, 1, 1, 1], 40), ([1, 1, 1, 1], 30)],
)
def test_easy_problems_have_shorter_limits(right: list[int], limit: int) -> None:
    assert group_limit(right, limit=50, easy_limits=[(0.5, 40), (0.9, 30)]) == limit
    assert group_limit(right, limit=50, easy_limits=()) == 50


@pytest.mark.parametrize(
    ("rewards", "lengths"),
    [([0, 0, 0], [1, 2, 3]), ([1, 1, 1], [1, 2, 3]), ([1, 1, 1], [98, 99, 97]), ([1], [5])],
)
def test_groups_without_a_difference_stay_at_exactly_zero(
    rewards: list[int], lengths: list[int]
) -> None:
    advantages_G = group_advantages(rewards, lengths, limit=10)
    assert_array_equal(advantages_G * advantage_scale(1e-30, 1), np.zeros(len(rewards)))


batches = st.integers(2, 6).flatmap(
    lambda size: st.lists(
        st.lists(
            st.tuples(st.sampled_from([0.0, 1.0]), st.integers(1, 20)), min_size=size, max_size=size
        ),
        min_size=1,
        max_size=6,
    )
)


@given(batches)
def test_scaled_over_the_batch_it_is_the_published_formula(
    batch: list[list[tuple[float, int]]],
) -> None:
    """A reward minus its group's mean, then minus the batch's mean, over the batch's deviation."""
    plain = []
    for group in batch:
        rewards = [reward * (length <= 10) for reward, length in group]
        plain += [reward - sum(rewards) / len(rewards) for reward in rewards]
    mean = sum(plain) / len(plain)
    deviation = (sum((a - mean) ** 2 for a in plain) / len(plain) + 1e-8) ** 0.5
    found = np.concatenate(
        [group_advantages(*zip(*group, strict=True), limit=10) for group in batch]
    )
    scale = advantage_scale(np.square(found).sum(), len(found))
    assert_allclose(found * scale, [(a - mean) / deviation for a in plain], atol=1e-9)


def test_a_batch_without_signal_is_not_scaled_up() -> None:
    assert advantage_scale(0.0, 8) == pytest.approx(1e4)
    assert advantage_scale(0.0, 0) == pytest.approx(1e4)
    assert advantage_scale(8 * 0.25, 8) == pytest.approx(2.0)


def sample(advantages: list[float], rows: list[int] | None = None) -> Sample:
    """A prompt and a thought with these advantages."""
    tokens = len(advantages)
    thought = Segment(
        parent=0,
        cut=1,
        kind=Kind.THOUGHT,
        token_ids=np.zeros(tokens, np.int32),
        logprobs=np.zeros(tokens, np.float32),
        versions=(0, 0),
    )
    prompt = Segment(parent=NO_PARENT, cut=0, kind=Kind.PROMPT, token_ids=np.zeros(1, np.int32))
    return Sample(
        segments=(prompt, thought),
        advantages=(None, np.array(advantages, np.float32)),
        rows=() if rows is None else (None, np.array(rows, np.int32)),
    )


def test_an_episode_counts_once_however_long_it_is() -> None:
    groups = [(sample([2.0]), sample([1.0] * 9)), (sample([]), sample([1.0, 3.0], rows=[2, 1]))]

    def share(*rows: tuple[tuple[int, int], ...]) -> tuple[float, float, int]:
        step = OptimizerStep(rows=rows, episodes=4, trained_tokens=13)
        return advantage_sums(RankPlan(groups=(0, 1), row_tokens=64, steps=(step,)), groups)

    # The empty episode is not counted; the token of two rows counts twice: (2 * 1 + 9) / 3.
    assert share(((0, 0), (0, 1)), ((1, 0), (1, 1))) == (2 + 1 + 5 / 3, 4 + 1 + 11 / 3, 3)
    assert share(((0, 0),), ()) == (2, 4, 1)
    assert share(((1, 0),)) == (0, 0, 0)
