from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from rlsys.algorithms.ddca import advantages, length_advantages

groups = st.lists(st.tuples(st.booleans(), st.integers(1, 5000)), min_size=1, max_size=12)


def loop(
    rewards: list[float], right: list[bool], lengths: list[int], beta: float, epsilon: float
) -> list[float]:
    """The published equations, one number at a time."""
    count = len(rewards)
    mean = sum(rewards) / count
    deviation = math.sqrt(sum((r - mean) ** 2 for r in rewards) / count)
    accuracy = [(r - mean) / (deviation + epsilon) for r in rewards]
    chosen = [i for i in range(count) if right[i]]
    shaped = [0.0] * count
    if chosen:
        middle = sum(lengths[i] for i in chosen) / len(chosen)
        spread = math.sqrt(sum((lengths[i] - middle) ** 2 for i in chosen) / len(chosen))
        s = {i: 1 / (1 + math.exp(-(lengths[i] - middle) / (spread + epsilon))) for i in chosen}
        for i in chosen:
            shaped[i] = -len(chosen) / count * (s[i] - sum(s.values()) / len(chosen))
    return [a + beta * b for a, b in zip(accuracy, shaped, strict=True)]


def test_hand_worked_numbers() -> None:
    # Right answers of 100 and 300 tokens: mean 200, deviation 100, sigmoid(-1) and sigmoid(1).
    s = 1 / (1 + math.exp(-1.0))
    length = 0.5 * (s - 0.5)
    assert length == pytest.approx(0.115529, abs=1e-6)
    assert_allclose(
        length_advantages([1, 1, 0, 0], [100, 300, 5, 9000]), [length, -length, 0, 0], atol=1e-6
    )
    assert_allclose(
        advantages([1, 1, 0, 0], [True, True, False, False], [100, 300, 5, 9000]),
        [1 + 0.2 * length, 1 - 0.2 * length, -1, -1],
        atol=1e-5,
    )


@given(groups, st.sampled_from([0.0, 0.2, 1.0]))
def test_equals_the_published_equations_as_a_loop(
    group: list[tuple[bool, int]], beta: float
) -> None:
    right, lengths = (list(column) for column in zip(*group, strict=True))
    rewards = [float(r) for r in right]
    found_G = advantages(rewards, right, lengths, beta=beta)
    assert_allclose(found_G, loop(rewards, right, lengths, beta, 1e-6), atol=1e-7)


@given(groups)
def test_length_moves_right_answers_only_and_on_average_by_nothing(
    group: list[tuple[bool, int]],
) -> None:
    right_G, lengths_G = map(np.array, zip(*group, strict=True))
    length_G = length_advantages(right_G, lengths_G)
    assert not length_G[~right_G].any()
    assert length_G.sum() == pytest.approx(0, abs=1e-9)
    assert np.abs(length_G).max() < 1
    order = np.argsort(lengths_G[right_G])
    assert (np.diff(length_G[right_G][order]) <= 1e-12).all()  # a longer one never earns more


@pytest.mark.parametrize(
    ("rewards", "lengths"),
    [([0, 0, 0], [5, 50, 500]), ([1, 1, 1], [7, 7, 7]), ([1], [3]), ([0], [3])],
)
def test_no_difference_no_signal(rewards: list[int], lengths: list[int]) -> None:
    right = np.array(rewards) > 0
    assert_array_equal(advantages(rewards, right, lengths), np.zeros(len(rewards)))


def test_a_lone_right_answer_has_no_length_advantage() -> None:
    assert_array_equal(length_advantages([0, 1, 0], [5, 50, 500]), [0, 0, 0])


def test_a_group_that_is_all_right_learns_from_length_alone() -> None:
    found_G = advantages([1, 1], [True, True], [10, 20], beta=1.0)
    assert_allclose(found_G, [0.231059, -0.231059], atol=1e-6)


def test_hard_problems_are_pressed_less() -> None:
    easy_G = length_advantages([1, 1], [10, 20])
    hard_G = length_advantages([1, 1, 0, 0, 0, 0, 0, 0], [10, 20, 1, 1, 1, 1, 1, 1])
    assert_allclose(hard_G[:2], easy_G / 4)


def test_one_entry_per_episode_each() -> None:
    with pytest.raises(ValueError, match="differ in shape"):
        advantages([1, 0], [True, False], [3])
