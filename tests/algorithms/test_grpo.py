from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from rlsys.algorithms.grpo import advantages


def test_mean_is_subtracted() -> None:
    cases: list[tuple[list[int], list[float]]] = [
        ([1, 0, 0, 1], [0.5, -0.5, -0.5, 0.5]),
        ([3, 0], [1.5, -1.5]),
        ([1, 2, 3, 6], [-2, -1, 0, 3]),
    ]
    for rewards_G, expected_G in cases:
        assert_allclose(advantages(rewards_G), expected_G, atol=1e-12, err_msg=str(rewards_G))


def test_std_divides_by_the_sample_deviation() -> None:
    cases: list[tuple[list[int], list[float]]] = [
        # Sample deviations 0.577350, 0.5 and 2.160247 (divisor G - 1), each plus 1e-4.
        ([1, 0, 0, 1], [0.865875, -0.865875, -0.865875, 0.865875]),
        ([1, 0, 0, 0], [1.499700, -0.499900, -0.499900, -0.499900]),
        ([1, 2, 3, 6], [-0.925777, -0.462889, 0, 1.388666]),
    ]
    for rewards_G, expected_G in cases:
        assert_allclose(
            advantages(rewards_G, scale="std"),
            expected_G,
            atol=1e-6,
            err_msg=str(rewards_G),
        )


@pytest.mark.parametrize(
    ("rewards_G", "expected_G"),
    [
        # The first two rows agree with a loop over the other members of the group.
        ([6, 3, 3], [3, -1.5, -1.5]),
        ([9, 3, 6], [4.5, -4.5, 0]),
        ([1, 0, 0, 1], [2 / 3, -2 / 3, -2 / 3, 2 / 3]),
        ([5], [0]),
    ],
)
def test_leave_one_out_compares_with_the_others(
    rewards_G: list[int], expected_G: list[float]
) -> None:
    assert_allclose(advantages(rewards_G, scale="leave_one_out"), expected_G, atol=1e-12)
    if len(rewards_G) > 1:
        loop_G = [
            r - np.mean([other for j, other in enumerate(rewards_G) if j != i])
            for i, r in enumerate(rewards_G)
        ]
        assert_allclose(expected_G, loop_G, atol=1e-12)


@given(st.floats(-10, 10), st.integers(1, 16), st.sampled_from(["none", "std", "leave_one_out"]))
def test_equal_rewards_give_exactly_zero(reward: float, group_size: int, scale: str) -> None:
    assert_array_equal(advantages([reward] * group_size, scale=scale), np.zeros(group_size))


def test_unknown_scale() -> None:
    with pytest.raises(ValueError, match="scale 'var' is unknown"):
        advantages([0.0, 1.0], scale="var")
