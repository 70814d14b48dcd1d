"""Invariants of BRPO for any scores, and the vectorised functions against a slow loop."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from numpy.typing import NDArray

from rlsys.algorithms import grpo
from rlsys.algorithms.brpo import (
    answer_advantages,
    budget_coefficients,
    group_baseline,
    prior,
    progress_baseline,
    returns,
    thought_advantages,
    truncation_plan,
)

Array = NDArray[Any]
PRIORS = st.sampled_from(["base", "uniform", "linear"])
MODES = st.sampled_from(["brpo", "v1only", "v2only", "none", "notrain"])
DECAYS = st.floats(0.05, 1.0)
TOLERANCE = 1e-12


@st.composite
def budgets_of(draw: st.DrawFn, *, most: int = 6) -> tuple[int, ...]:
    """Increasing budgets, evenly spaced or not."""
    steps = draw(st.lists(st.integers(1, 40), min_size=1, max_size=most))
    return tuple(int(budget) for budget in np.cumsum(steps))


@st.composite
def scored_groups(draw: st.DrawFn) -> tuple[Array, tuple[int, ...]]:
    """Scores of two or more thoughts, each the mean of up to four answers, and their budgets."""
    budgets = draw(budgets_of())
    answers = draw(st.sampled_from([1, 2, 4]))
    right = st.integers(0, answers)
    rows = draw(st.lists(st.tuples(*[right] * len(budgets)), min_size=2, max_size=5))
    return np.array(rows, dtype=np.float64) / answers, budgets


@st.composite
def answered_groups(draw: st.DrawFn) -> tuple[Array, Array, int, tuple[int, ...]]:
    """Flat answer scores and splits of a group whose thoughts end anywhere."""
    budgets, answers = draw(budgets_of()), draw(st.sampled_from([1, 2, 4]))
    num_thoughts = draw(st.integers(2, 5))
    splits = []
    for _ in range(num_thoughts):
        length, closed = draw(st.integers(1, budgets[-1])), draw(st.booleans())
        plan = truncation_plan(length, closed, budgets, answers)
        splits.append([branch.split for branch in plan for _ in range(branch.answers)])
    row = st.lists(
        st.integers(0, 1), min_size=len(budgets) * answers, max_size=len(budgets) * answers
    )
    scores = draw(st.lists(row, min_size=num_thoughts, max_size=num_thoughts))
    return np.array(scores, dtype=np.float64), np.array(splits), answers, budgets


def slow_thought_advantages(
    scores: Array, weights: Array, mode: str, decay: float, shares: Array | None
) -> Array:
    """The definition of the advantages, one number at a time."""
    num_thoughts, num_budgets = scores.shape
    result = np.zeros_like(scores)

    def future(g: int, s: int) -> float:
        return float(sum(weights[k] * scores[g, k] for k in range(s, num_budgets)))

    for g in range(num_thoughts):
        for s in range(num_budgets):
            v1 = 0.0
            if s > 0:
                powers = [decay ** (s - k) for k in range(s)]
                mean = sum(p * scores[g, k] for k, p in enumerate(powers)) / sum(powers)
                v1 = sum(weights[s:]) * mean
            v2 = 0.0
            if num_thoughts > 1:
                v2 = sum(future(other, s) for other in range(num_thoughts)) / num_thoughts
            share = s / num_budgets if shares is None else shares[s]
            baseline = {
                "brpo": share * v1 + (1 - share) * v2,
                "v1only": v1,
                "v2only": v2,
                "none": 0.0,
                "notrain": future(g, s),
            }[mode]
            result[g, s] = future(g, s) - baseline
    return result


@given(scored_groups(), PRIORS, MODES, DECAYS, st.booleans())
def test_thought_advantages_equal_the_slow_loop(
    group: tuple[NDArray[np.float64], tuple[int, ...]],
    name: str,
    mode: str,
    decay: float,
    by_budget: bool,
) -> None:
    scores_GM, budgets = group
    shares_M = budget_coefficients(budgets) if by_budget else None
    weights_M = prior(name, budgets)
    fast_GM = thought_advantages(
        scores_GM, weights_M, mode=mode, decay=decay, coefficients=shares_M
    )
    slow_GM = slow_thought_advantages(scores_GM, weights_M, mode, decay, shares_M)
    assert_allclose(fast_GM, slow_GM, atol=TOLERANCE)


@given(answered_groups(), st.sampled_from(["brpo", "grpo"]))
def test_answer_advantages_equal_the_slow_loop(
    group: tuple[NDArray[np.float64], NDArray[np.int64], int, tuple[int, ...]], method: str
) -> None:
    scores_GN, splits_GN, answers, _ = group
    expected_GN = np.zeros_like(scores_GN)
    num_thoughts, num_answers = scores_GN.shape
    for g in range(num_thoughts):
        for i in range(num_answers):
            siblings = [
                scores_GN[g, j] for j in range(num_answers) if splits_GN[g, j] == splits_GN[g, i]
            ]
            if answers == 1:
                siblings = [scores_GN[other, i] for other in range(num_thoughts)]
            if method == "brpo" or i == num_answers - 1:
                expected_GN[g, i] = scores_GN[g, i] - sum(siblings) / len(siblings)
    fast_GN = answer_advantages(scores_GN, splits_GN, answers, method=method)
    assert_allclose(fast_GN, expected_GN, atol=TOLERANCE)


@given(scored_groups(), PRIORS)
def test_one_budget_subtracts_the_group_mean(
    group: tuple[NDArray[np.float64], tuple[int, ...]], name: str
) -> None:
    scores_G1 = group[0][:, :1]
    advantages_G1 = thought_advantages(scores_G1, prior(name, [64]))
    assert_allclose(advantages_G1, scores_G1 - scores_G1.mean(), atol=TOLERANCE)
    # With a single answer the thought, its answer and Dr. GRPO agree.
    answers_G1 = answer_advantages(scores_G1, np.zeros_like(scores_G1, dtype=int), 1)
    assert_allclose(answers_G1, advantages_G1, atol=TOLERANCE)
    assert_allclose(grpo.advantages(scores_G1[:, 0]), advantages_G1[:, 0], atol=TOLERANCE)


@given(scored_groups())
def test_base_prior_with_the_group_mean_is_flat_over_slots(
    group: tuple[NDArray[np.float64], tuple[int, ...]],
) -> None:
    scores_GM, budgets = group
    advantages_GM = thought_advantages(scores_GM, prior("base", budgets), mode="v2only")
    final_G1 = scores_GM[:, -1:]
    expected_GM = np.broadcast_to(final_G1 - final_G1.mean(), scores_GM.shape)
    assert_allclose(advantages_GM, expected_GM, atol=TOLERANCE)


@given(scored_groups(), PRIORS, DECAYS)
def test_sums_over_the_group(
    group: tuple[NDArray[np.float64], tuple[int, ...]], name: str, decay: float
) -> None:
    scores_GM, budgets = group
    weights_M = prior(name, budgets)
    v2only_GM = thought_advantages(scores_GM, weights_M, mode="v2only")
    assert_allclose(v2only_GM.sum(axis=0), 0, atol=TOLERANCE)

    brpo_GM = thought_advantages(scores_GM, weights_M, decay=decay)
    v1only_GM = thought_advantages(scores_GM, weights_M, mode="v1only", decay=decay)
    share_M = np.arange(len(budgets)) / len(budgets)
    assert_allclose(brpo_GM.sum(axis=0), share_M * v1only_GM.sum(axis=0), atol=TOLERANCE)


@given(scored_groups(), PRIORS)
def test_returns_telescope(group: tuple[NDArray[np.float64], tuple[int, ...]], name: str) -> None:
    scores_GM, budgets = group
    weights_M = prior(name, budgets)
    returns_GM = returns(scores_GM, weights_M)
    steps_GM = returns_GM - np.pad(returns_GM[:, 1:], ((0, 0), (0, 1)))
    assert_allclose(steps_GM, weights_M * scores_GM, atol=TOLERANCE)
    uniform_GM = returns(scores_GM, prior("uniform", budgets))
    assert_allclose(uniform_GM[:, 0].mean(), scores_GM.mean(), atol=TOLERANCE)


@given(scored_groups(), PRIORS, DECAYS, st.floats(-3, 3), st.floats(0.1, 5))
def test_shift_and_scale_of_scores(
    group: tuple[NDArray[np.float64], tuple[int, ...]],
    name: str,
    decay: float,
    shift: float,
    scale: float,
) -> None:
    scores_GM, budgets = group
    weights_M = prior(name, budgets)
    for mode in ("brpo", "v1only", "v2only", "none", "notrain"):
        plain_GM = thought_advantages(scores_GM, weights_M, mode=mode, decay=decay)
        scaled_GM = thought_advantages(scale * scores_GM, weights_M, mode=mode, decay=decay)
        assert_allclose(scaled_GM, scale * plain_GM, atol=1e-10)
        shifted_GM = thought_advantages(scores_GM + shift, weights_M, mode=mode, decay=decay)
        if mode in ("brpo", "v2only"):
            assert_allclose(shifted_GM, plain_GM, atol=1e-10)
        if mode == "v1only":
            assert_allclose(shifted_GM[:, 1:], plain_GM[:, 1:], atol=1e-10)


@given(budgets_of(), st.lists(st.floats(0, 1), min_size=2, max_size=5), PRIORS, DECAYS)
def test_scores_constant_along_a_thought(
    budgets: tuple[int, ...], scores_G: list[float], name: str, decay: float
) -> None:
    num_budgets, weights_M = len(budgets), prior(name, budgets)
    scores_GM = np.repeat(np.reshape(scores_G, (-1, 1)), num_budgets, axis=1)
    v1_GM = progress_baseline(scores_GM, weights_M, decay)
    assert_allclose(v1_GM[:, 1:], returns(scores_GM, weights_M)[:, 1:], atol=TOLERANCE)

    remaining_M = np.array([weights_M[s:].sum() for s in range(num_budgets)])
    fade_M = 1 - np.arange(num_budgets) / num_budgets
    expected_GM = fade_M * remaining_M * (scores_GM - scores_GM.mean(axis=0))
    advantages_GM = thought_advantages(scores_GM, weights_M, decay=decay)
    assert_allclose(advantages_GM, expected_GM, atol=TOLERANCE)


@given(budgets_of(), st.floats(0, 1), st.integers(2, 5), PRIORS, DECAYS)
def test_equal_scores_teach_nothing(
    budgets: tuple[int, ...], score: float, num_thoughts: int, name: str, decay: float
) -> None:
    scores_GM = np.full((num_thoughts, len(budgets)), score)
    for mode in ("brpo", "v2only"):
        advantages_GM = thought_advantages(scores_GM, prior(name, budgets), mode=mode, decay=decay)
        assert_allclose(advantages_GM, 0, atol=TOLERANCE)


@given(scored_groups(), PRIORS, DECAYS, st.booleans())
def test_the_baseline_lies_between_its_halves(
    group: tuple[NDArray[np.float64], tuple[int, ...]], name: str, decay: float, by_budget: bool
) -> None:
    scores_GM, budgets = group
    weights_M = prior(name, budgets)
    shares_M = budget_coefficients(budgets) if by_budget else None
    returns_GM = returns(scores_GM, weights_M)
    baseline_GM = returns_GM - thought_advantages(
        scores_GM, weights_M, decay=decay, coefficients=shares_M
    )
    v1_GM = progress_baseline(scores_GM, weights_M, decay)
    v2_GM = np.broadcast_to(group_baseline(returns_GM), scores_GM.shape)
    assert (baseline_GM >= np.minimum(v1_GM, v2_GM) - TOLERANCE).all()
    assert (baseline_GM <= np.maximum(v1_GM, v2_GM) + TOLERANCE).all()
    assert_allclose(baseline_GM[:, 0], v2_GM[:, 0], atol=TOLERANCE)


@given(scored_groups(), PRIORS, MODES, st.randoms())
def test_order_of_thoughts_does_not_matter(
    group: tuple[NDArray[np.float64], tuple[int, ...]],
    name: str,
    mode: str,
    random: Random,
) -> None:
    scores_GM, budgets = group
    order = random.sample(range(len(scores_GM)), len(scores_GM))
    weights_M = prior(name, budgets)
    permuted_GM = thought_advantages(scores_GM[order], weights_M, mode=mode)
    expected_GM = thought_advantages(scores_GM, weights_M, mode=mode)[order]
    assert_allclose(permuted_GM, expected_GM, atol=TOLERANCE)


@given(scored_groups(), PRIORS, MODES, st.data())
def test_other_thoughts_count_from_the_slot_on_only(
    group: tuple[NDArray[np.float64], tuple[int, ...]], name: str, mode: str, data: st.DataObject
) -> None:
    scores_GM, budgets = group
    slot = data.draw(st.integers(0, len(budgets) - 1))
    changed_GM = scores_GM.copy()
    changed_GM[1:, :slot] = 1 - changed_GM[1:, :slot]
    weights_M = prior(name, budgets)
    before_GM = thought_advantages(scores_GM, weights_M, mode=mode)
    after_GM = thought_advantages(changed_GM, weights_M, mode=mode)
    assert_allclose(before_GM[0, slot:], after_GM[0, slot:], atol=TOLERANCE)


@given(answered_groups())
def test_answers_of_one_cut_sum_to_zero(
    group: tuple[NDArray[np.float64], NDArray[np.int64], int, tuple[int, ...]],
) -> None:
    scores_GN, splits_GN, answers, _ = group
    advantages_GN = answer_advantages(scores_GN, splits_GN, answers)
    if answers == 1:
        assert_allclose(advantages_GN.sum(axis=0), 0, atol=TOLERANCE)
        return
    for advantages_N, splits_N in zip(advantages_GN, splits_GN, strict=True):
        assert_allclose(np.bincount(splits_N, weights=advantages_N), 0, atol=TOLERANCE)


@given(budgets_of(most=8), st.data(), st.booleans(), st.integers(1, 4))
def test_the_plan_covers_every_slot_once(
    budgets: tuple[int, ...], data: st.DataObject, closed: bool, answers: int
) -> None:
    length = data.draw(st.integers(1, budgets[-1]))
    plan = truncation_plan(length, closed, budgets, answers)
    assert sum(branch.answers for branch in plan) == len(budgets) * answers
    assert [branch.split for branch in plan] == list(range(len(plan)))
    cuts = [branch.cut for branch in plan]
    assert cuts == sorted(set(cuts)) and cuts[-1] == length
    assert all(branch.cut in budgets for branch in plan[:-1])
    assert [branch.truncated for branch in plan] == [True] * (len(plan) - 1) + [not closed]


@settings(max_examples=50)
@given(scored_groups(), PRIORS, DECAYS)
def test_float32_scores_are_computed_in_float64(
    group: tuple[NDArray[np.float64], tuple[int, ...]], name: str, decay: float
) -> None:
    scores_GM, budgets = group
    advantages_GM = thought_advantages(
        scores_GM.astype(np.float32), prior(name, budgets), decay=decay
    )
    assert advantages_GM.dtype == np.float64
    expected_GM = thought_advantages(scores_GM, prior(name, budgets), decay=decay)
    assert_allclose(advantages_GM, expected_GM, atol=TOLERANCE)
