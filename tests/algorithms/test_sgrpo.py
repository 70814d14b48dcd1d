from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from rlsys.algorithms.sgrpo import exit_advantages, exit_rewards, thought_advantages

matrices = st.integers(1, 6).flatmap(
    lambda m: st.lists(st.lists(st.booleans(), min_size=m, max_size=m), min_size=1, max_size=4)
)


@pytest.mark.parametrize(
    ("right_m", "rewards_m"),
    [
        ([0, 1, 0, 1, 1], [0, 1, 0, 0.5, 0.25]),
        ([1, 1, 1, 1], [1, 0.5, 0.25, 0.125]),
        ([0, 0, 0], [0, 0, 0]),
        ([0, 0, 1], [0, 0, 1]),
        ([1, 0, 0, 1], [1, 0, 0, 0.5]),
        ([1], [1]),
    ],
)
def test_a_right_answer_earns_half_as_much_as_the_one_before(
    right_m: list[int], rewards_m: list[float]
) -> None:
    assert_array_equal(exit_rewards([right_m]), [rewards_m])


def test_thoughts_do_not_influence_each_other() -> None:
    assert_array_equal(exit_rewards([[1, 1], [0, 1], [0, 0]]), [[1, 0.5], [0, 1], [0, 0]])


def test_answers_at_one_cut_are_equally_early() -> None:
    right = [[1, 1, 0, 1, 1]]
    assert_array_equal(exit_rewards(right, [[0, 1, 2, 2, 2]]), [[1, 0.5, 0, 0.25, 0.25]])
    assert_array_equal(exit_rewards(right, [[0, 0, 0, 0, 0]]), right)
    assert_array_equal(exit_rewards(right, [[0, 1, 2, 3, 4]]), exit_rewards(right))


@given(matrices)
def test_rewards_equal_the_published_formula_as_a_loop(right_Gm: list[list[bool]]) -> None:
    for right_m, rewards_m in zip(right_Gm, exit_rewards(right_Gm), strict=True):
        seen = 0
        for right, reward in zip(right_m, rewards_m, strict=True):
            seen += right
            assert reward == (1 / 2 ** (seen - 1) if right else 0)


@given(matrices)
def test_advantages_sum_to_zero_within_a_thought(right_Gm: list[list[bool]]) -> None:
    advantages_Gm = exit_advantages(exit_rewards(right_Gm))
    assert_allclose(advantages_Gm.sum(axis=1), 0, atol=1e-12)
    slots_Gm = thought_advantages(advantages_Gm)
    assert_array_equal(slots_Gm[:, 0], 0)
    for advantages_m, slots_m in zip(advantages_Gm, slots_Gm, strict=True):
        for slot, value in enumerate(slots_m):
            later = sum(a for i, a in enumerate(advantages_m) if i >= slot)
            assert value == pytest.approx(later, abs=1e-12)


def test_hand_worked_advantages() -> None:
    advantages_Gm = exit_advantages([[0.0, 1, 0, 0.5], [0.0, 0, 0, 1]])
    assert_allclose(
        advantages_Gm, [[-0.375, 0.625, -0.375, 0.125], [-0.25, -0.25, -0.25, 0.75]], atol=1e-12
    )
    # Going on after the right answer at exit 1 is discouraged; thought 1 should have gone on.
    assert_allclose(
        thought_advantages(advantages_Gm),
        [[0, 0.375, -0.25, 0.125], [0, 0.25, 0.5, 0.75]],
        atol=1e-12,
    )


def test_no_difference_no_signal() -> None:
    for right in ([[0, 0, 0]], [[1]], [[0]]):
        advantages_Gm = exit_advantages(exit_rewards(right))
        assert_array_equal(advantages_Gm, np.zeros(np.shape(right)))
        assert_array_equal(thought_advantages(advantages_Gm), np.zeros(np.shape(right)))


def test_splits_must_fit() -> None:
    with pytest.raises(ValueError, match=r"splits \(1, 2\) do not fit answers \(1, 3\)"):
        exit_rewards([[1, 0, 1]], [[0, 1]])
