"""Returns and advantages of several turns, against numbers worked out by hand and a slow loop."""

from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlsys.algorithms import turns

Credit = Literal["episode", "turn"]
Scale = Literal["none", "std"]

NAN = float("nan")
REWARDS_GT = np.array([[1.0, 0.0, 2.0], [1.0, -0.5, NAN], [0.0, NAN, NAN]])


def test_a_turn_is_credited_with_what_comes_from_it_on() -> None:
    found = turns.returns(REWARDS_GT, credit="turn", discount=0.5)
    np.testing.assert_allclose(found, [[1.5, 1.0, 2.0], [0.75, -0.5, NAN], [0.0, NAN, NAN]])


def test_an_episode_credits_every_reply_with_all_of_it() -> None:
    found = turns.returns(REWARDS_GT, credit="episode")
    np.testing.assert_allclose(found, [[3.0, 3.0, 3.0], [0.5, 0.5, NAN], [0.0, NAN, NAN]])


def test_turns_are_compared_with_those_that_got_there() -> None:
    found = turns.advantages(REWARDS_GT, credit="turn")
    # Returns to go: 3 2 2 | 0.5 -0.5 | 0; means 3.5/3, 0.75, 2.
    expected = [[3 - 3.5 / 3, 1.25, 0.0], [0.5 - 3.5 / 3, -1.25, NAN], [-3.5 / 3, NAN, NAN]]
    np.testing.assert_allclose(found, expected)


def test_an_episode_counts_once_however_many_replies_it_has() -> None:
    found = turns.advantages(REWARDS_GT, credit="episode")
    mean = 3.5 / 3
    expected = [[3 - mean] * 3, [0.5 - mean] * 2 + [NAN], [-mean, NAN, NAN]]
    np.testing.assert_allclose(found, expected)


def test_std_divides_by_the_sample_deviation_of_what_is_compared() -> None:
    rewards_GT = np.array([[1.0], [3.0]])
    found = turns.advantages(rewards_GT, credit="turn", scale="std")
    np.testing.assert_allclose(found, [[-1 / np.sqrt(2)], [1 / np.sqrt(2)]], atol=1e-5)


def test_a_group_without_replies_has_no_advantages() -> None:
    assert turns.advantages(np.zeros((3, 0)), credit="turn").shape == (3, 0)


@given(
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=5),
    discount=st.sampled_from([1.0, 0.9, 0.3, 0.0]),
    scale=st.sampled_from(["none", "std"]),
    credit=st.sampled_from(["turn", "episode"]),
    seed=st.integers(0, 1000),
)
def test_equal_to_a_slow_loop(
    lengths: list[int], discount: float, scale: Scale, credit: Credit, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    episodes = [rng.normal(size=n).tolist() for n in lengths]
    rewards_GT = np.full((len(lengths), max(lengths)), NAN)
    for row, rewards in zip(rewards_GT, episodes, strict=True):
        row[: len(rewards)] = rewards
    found = turns.advantages(rewards_GT, credit=credit, discount=discount, scale=scale)
    for g, rewards in enumerate(episodes):
        for t in range(max(lengths)):
            if t >= len(rewards):
                assert np.isnan(found[g, t])
                continue
            assert found[g, t] == pytest.approx(
                slow(episodes, g, t, credit, discount, scale), abs=1e-9
            )


def slow(
    episodes: list[list[float]], g: int, t: int, credit: Credit, discount: float, scale: Scale
) -> float:
    def value(rewards: list[float]) -> float:
        if credit == "episode":
            return sum(rewards)
        return sum(discount**k * r for k, r in enumerate(rewards[t:]))

    compared = [value(e) for e in episodes if credit == "episode" or len(e) > t]
    centred = value(episodes[g]) - sum(compared) / len(compared)
    if scale == "none":
        return centred
    deviation = float(np.std(compared, ddof=1)) if len(compared) > 1 else 0.0
    return centred / (deviation + 1e-6)
