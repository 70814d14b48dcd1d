from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from rlsys.algorithms.reflection import cut_at_budget, fixed_ratio_cuts, token_ratios


def test_ratios_of_sets_and_their_two_averages() -> None:
    ratios = token_ratios([300, 2100, 7600], [600, 3200, 9000])
    assert_allclose(ratios.per_set_S, [50, 65.625, 84.4444], atol=1e-4)
    assert ratios.mean_of_ratios == pytest.approx(66.6898, abs=1e-4)
    assert ratios.ratio_of_means == pytest.approx(78.125)


def test_long_responses_are_cut_and_lose_their_answers() -> None:
    tokens, answered = cut_at_budget([500, 7000, 8192, 9000, 16000], 8192)
    assert_array_equal(tokens, [500, 7000, 8192, 8192, 8192])
    assert tokens.mean() == pytest.approx(6415.2)
    assert_array_equal(answered, [True, True, True, False, False])


def test_fixed_ratios_make_up_for_what_earlier_cuts_kept_too_much() -> None:
    # Half of 20 tokens: 6 is nearest to 5, so of the second thought 4 are due, and 5 is nearest.
    assert fixed_ratio_cuts([[6, 10], [1, 5, 10]], 0.5) == [6, 5]
    # Here 3 is nearest to 5, so 7 are due.
    assert fixed_ratio_cuts([[3, 10], [3, 8, 10]], 0.5) == [3, 8]
    assert fixed_ratio_cuts([], 0.5) == []


@given(
    st.lists(st.integers(1, 40).map(lambda n: list(range(n + 1))[1:]), min_size=1, max_size=20),
    st.floats(0.1, 1),
)
def test_fixed_ratios_meet_the_share_where_every_place_is_allowed(
    boundaries: list[list[int]], share: float
) -> None:
    cuts = fixed_ratio_cuts(boundaries, share)
    total = sum(places[-1] for places in boundaries)
    assert all(cut in places for cut, places in zip(cuts, boundaries, strict=True))
    # Each thought keeps at least one token; beyond that only rounding is left.
    assert sum(cuts) <= share * total + len(boundaries) + 1
    assert sum(cuts) >= share * total - 1
    assert np.all(np.array(cuts) >= 1)
