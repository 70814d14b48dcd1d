"""BRPO against numbers worked out by hand and numbers the published code produces."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from rlsys.algorithms.brpo import (
    answer_advantages,
    baseline_quality,
    baselines,
    budget_coefficients,
    group_baseline,
    prior,
    progress_baseline,
    returns,
    thought_advantages,
    truncation_plan,
)

BUDGETS = (2000, 4000, 6000, 8000)
# Two thoughts under four budgets.
SCORES_GM = [[0.25, 0.5, 0.75, 1.0], [0.0, 0.25, 0.0, 0.5]]


def test_prior() -> None:
    cases: list[tuple[str, range | tuple[int, ...], list[float]]] = [
        ("base", BUDGETS, [0, 0, 0, 1]),
        ("uniform", BUDGETS, [0.25, 0.25, 0.25, 0.25]),
        ("linear", BUDGETS, [0.1, 0.2, 0.3, 0.4]),
        ("linear", (1000, 2000, 8000), [0.090909, 0.181818, 0.727273]),
        (
            "linear",
            range(1000, 9000, 1000),
            [0.027778, 0.055556, 0.083333, 0.111111, 0.138889, 0.166667, 0.194444, 0.222222],
        ),
    ]
    for name, budgets, expected in cases:
        weights_M = prior(name, budgets)
        assert weights_M.dtype == np.float64, (name, budgets)
        assert_allclose(weights_M, expected, atol=1e-6, err_msg=str((name, budgets)))


def test_unknown_prior_lists_the_valid_ones() -> None:
    with pytest.raises(ValueError, match="'square' is unknown; use 'base', 'uniform' or 'linear'"):
        prior("square", BUDGETS)


def test_return_and_both_baselines() -> None:
    cases: list[tuple[str, list[list[float]], list[list[float]], list[float]]] = [
        (
            "uniform",
            [[0.625, 0.5625, 0.4375, 0.25], [0.1875, 0.1875, 0.125, 0.125]],
            [[0, 0.1875, 0.208333, 0.151786], [0, 0, 0.083333, 0.017857]],
            [0.40625, 0.375, 0.28125, 0.1875],
        ),
        (
            "linear",
            [[0.75, 0.725, 0.625, 0.4], [0.25, 0.25, 0.2, 0.2]],
            [[0, 0.225, 0.291667, 0.242857], [0, 0, 0.116667, 0.028571]],
            [0.5, 0.4875, 0.4125, 0.3],
        ),
        (
            "base",
            [[1, 1, 1, 1], [0.5, 0.5, 0.5, 0.5]],
            [[0, 0.25, 0.416667, 0.607143], [0, 0, 0.166667, 0.071429]],
            [0.75, 0.75, 0.75, 0.75],
        ),
    ]
    for name, returns_GM, v1_GM, v2_M in cases:
        prior_M = prior(name, BUDGETS)
        assert_allclose(
            returns(SCORES_GM, prior_M),
            returns_GM,
            atol=1e-6,
            err_msg=name,
        )
        assert_allclose(
            progress_baseline(SCORES_GM, prior_M, 0.5),
            v1_GM,
            atol=1e-6,
            err_msg=name,
        )
        assert_allclose(
            group_baseline(returns(SCORES_GM, prior_M)),
            [v2_M],
            atol=1e-6,
            err_msg=name,
        )


def test_thought_advantages() -> None:
    cases: list[tuple[str, str, list[list[float]]]] = [
        (
            "uniform",
            "brpo",
            [[0.21875, 0.234375, 0.192708, 0.089286], [-0.21875, -0.09375, -0.057292, 0.064732]],
        ),
        (
            "uniform",
            "v1only",
            [[0.625, 0.375, 0.229167, 0.098214], [0.1875, 0.1875, 0.041667, 0.107143]],
        ),
        (
            "uniform",
            "v2only",
            [[0.21875, 0.1875, 0.15625, 0.0625], [-0.21875, -0.1875, -0.15625, -0.0625]],
        ),
        ("uniform", "none", [[0.625, 0.5625, 0.4375, 0.25], [0.1875, 0.1875, 0.125, 0.125]]),
        ("uniform", "notrain", [[0, 0, 0, 0], [0, 0, 0, 0]]),
        (
            "linear",
            "brpo",
            [[0.25, 0.303125, 0.272917, 0.142857], [-0.25, -0.115625, -0.064583, 0.103571]],
        ),
        (
            "linear",
            "v1only",
            [[0.75, 0.5, 0.333333, 0.157143], [0.25, 0.25, 0.083333, 0.171429]],
        ),
        ("linear", "v2only", [[0.25, 0.2375, 0.2125, 0.1], [-0.25, -0.2375, -0.2125, -0.1]]),
        (
            "base",
            "brpo",
            [[0.25, 0.375, 0.416667, 0.357143], [-0.25, -0.0625, 0.041667, 0.258929]],
        ),
        ("base", "v1only", [[1, 0.75, 0.583333, 0.392857], [0.5, 0.5, 0.333333, 0.428571]]),
        ("base", "v2only", [[0.25, 0.25, 0.25, 0.25], [-0.25, -0.25, -0.25, -0.25]]),
    ]
    for name, mode, expected in cases:
        advantages_GM = thought_advantages(SCORES_GM, prior(name, BUDGETS), mode=mode)
        assert_allclose(advantages_GM, expected, atol=1e-6, err_msg=str((name, mode)))


def test_anytime_and_final_accuracy_are_mean_returns() -> None:
    assert returns(SCORES_GM, prior("uniform", BUDGETS))[:, 0].mean() == pytest.approx(0.40625)
    assert returns(SCORES_GM, prior("base", BUDGETS))[:, 0].mean() == pytest.approx(0.75)


def test_thought_advantages_equal_the_published_code() -> None:
    cases: list[tuple[str, str, list[list[float]]]] = [
        ("uniform", "brpo", [[0.125, 0.25, 0.197917, 0.053571], [-0.125, 0, 0.15625, 0.133929]]),
        (
            "linear",
            "brpo",
            [[0.125, 0.29375, 0.270833, 0.085714], [-0.125, 0.04375, 0.2375, 0.214286]],
        ),
        ("base", "brpo", [[0, 0.25, 0.333333, 0.214286], [0, 0.25, 0.5, 0.535714]]),
        (
            "uniform",
            "v1only",
            [[0.625, 0.625, 0.333333, 0.071429], [0.375, 0.375, 0.375, 0.178571]],
        ),
        ("uniform", "v2only", [[0.125, 0.125, 0.0625, 0], [-0.125, -0.125, -0.0625, 0]]),
        ("uniform", "none", [[0.625, 0.625, 0.5, 0.25], [0.375, 0.375, 0.375, 0.25]]),
    ]
    for name, mode, expected in cases:
        flat_GN = np.array([[0, 0, 0, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 1, 1, 1]], dtype=np.float64)
        scores_GM = flat_GN.reshape(2, 4, 2).mean(axis=2)
        advantages_GM = thought_advantages(scores_GM, prior(name, BUDGETS), mode=mode)
        assert_allclose(advantages_GM, expected, atol=1e-6, err_msg=str((name, mode)))


# An early finish: thought 0 closed itself after 4500 tokens, thought 1 ran out at 8000; A = 2.
EARLY_SCORES_GN = [[0, 0, 0, 1, 1, 1, 0, 1], [0, 0, 0, 0, 1, 0, 1, 1]]
EARLY_SPLITS_GN = [[0, 0, 1, 1, 2, 2, 2, 2], [0, 0, 1, 1, 2, 2, 3, 3]]


def test_thought_advantages_of_an_early_finish() -> None:
    cases: list[tuple[str, list[list[float]]]] = [
        (
            "uniform",
            [[0.0625, 0.171875, 0.104167, -0.055804], [-0.0625, 0.046875, 0.1875, 0.149554]],
        ),
        (
            "linear",
            [[0.025, 0.16875, 0.120833, -0.089286], [-0.025, 0.11875, 0.2875, 0.239286]],
        ),
        (
            "base",
            [[-0.25, -0.0625, -0.041667, -0.223214], [0.25, 0.4375, 0.625, 0.598214]],
        ),
    ]
    for name, expected in cases:
        scores_GM = np.reshape(EARLY_SCORES_GN, (2, 4, 2)).mean(axis=2)
        assert_array_equal(scores_GM, [[0, 0.5, 1, 0.5], [0, 0, 0.5, 1]])
        assert_allclose(
            thought_advantages(scores_GM, prior(name, BUDGETS)),
            expected,
            atol=1e-6,
            err_msg=name,
        )


def test_answer_advantages_of_an_early_finish() -> None:
    assert_allclose(
        answer_advantages(EARLY_SCORES_GN, EARLY_SPLITS_GN, 2),
        [[0, 0, -0.5, 0.5, 0.25, 0.25, -0.75, 0.25], [0, 0, 0, 0, 0.5, -0.5, 0, 0]],
        atol=1e-6,
    )
    assert_allclose(
        answer_advantages(EARLY_SCORES_GN, EARLY_SPLITS_GN, 2, method="grpo"),
        [[0.0, 0, 0, 0, 0, 0, 0, 0.25], [0.0] * 8],
        atol=1e-6,
    )


def test_single_answers_take_the_mean_of_their_slot() -> None:
    scores_GN, splits_GN = [[0, 1, 1, 1], [0, 0, 1, 0]], [[0, 1, 2, 3], [0, 1, 1, 1]]
    assert_allclose(
        answer_advantages(scores_GN, splits_GN, 1), [[0, 0.5, 0, 0.5], [0, -0.5, 0, -0.5]]
    )
    assert_allclose(
        answer_advantages(scores_GN, splits_GN, 1, method="grpo"),
        [[0, 0, 0, 0.5], [0, 0, 0, -0.5]],
    )


def test_one_budget_is_dr_grpo() -> None:
    cases: list[tuple[list[float], list[float]]] = [
        ([1, 0, 0, 1], [0.5, -0.5, -0.5, 0.5]),
        ([0.75, 0.25, 0, 1], [0.25, -0.25, -0.5, 0.5]),
    ]
    for scores_G, expected_G in cases:
        scores_G1, prior_1 = np.reshape(scores_G, (4, 1)), prior("uniform", [8000])
        for mode in ("brpo", "v2only"):
            assert_allclose(
                thought_advantages(scores_G1, prior_1, mode=mode)[:, 0],
                expected_G,
                err_msg=str(scores_G),
            )
        assert_allclose(
            thought_advantages(scores_G1, prior_1, mode="v1only")[:, 0],
            scores_G,
            err_msg=str(scores_G),
        )


def test_uneven_budgets_with_both_coefficients() -> None:
    budgets, scores_GM = (1000, 2000, 8000), [[0.25, 0.5, 1], [0, 0.25, 0.5]]
    prior_M = prior("uniform", budgets)
    assert_allclose(budget_coefficients(budgets), [0, 0.125, 0.25])
    assert_allclose(
        thought_advantages(scores_GM, prior_M),
        [[0.166667, 0.194444, 0.157407], [-0.166667, 0, 0.046296]],
        atol=1e-6,
    )
    assert_allclose(
        thought_advantages(scores_GM, prior_M, coefficients=budget_coefficients(budgets)),
        [[0.166667, 0.151042, 0.111111], [-0.166667, -0.078125, -0.034722]],
        atol=1e-6,
    )


def test_decay_weighs_earlier_scores() -> None:
    cases: list[tuple[float, list[float]]] = [
        (1.0, [0, 0, 0.5, 1 / 3]),
        (0.5, [0, 0, 2 / 3, 2 / 7]),
        (0.25, [0, 0, 4 / 5, 4 / 21]),
        (1e-300, [0, 0, 1, 0]),
    ]
    for decay, mean_M in cases:
        baseline_GM = progress_baseline([[0, 1, 0, 1]], prior("base", BUDGETS), decay)
        assert_allclose(baseline_GM, [mean_M], atol=1e-12, err_msg=str(decay))


def test_a_lone_thought_has_no_group_baseline() -> None:
    prior_M = prior("uniform", BUDGETS)
    alone_1M = SCORES_GM[:1]
    assert_allclose(
        thought_advantages(alone_1M, prior_M, mode="v2only"), returns(alone_1M, prior_M)
    )


def test_truncation_plan() -> None:
    cases: list[tuple[int, bool, list[tuple[int, int, bool]]]] = [
        (2000, True, [(2000, 4, False)]),
        (2001, True, [(2000, 1, True), (2001, 3, False)]),
        (4500, True, [(2000, 1, True), (4000, 1, True), (4500, 2, False)]),
        (6001, True, [(2000, 1, True), (4000, 1, True), (6000, 1, True), (6001, 1, False)]),
        (8000, True, [(2000, 1, True), (4000, 1, True), (6000, 1, True), (8000, 1, False)]),
        (8000, False, [(2000, 1, True), (4000, 1, True), (6000, 1, True), (8000, 1, True)]),
        (5000, False, [(2000, 1, True), (4000, 1, True), (5000, 2, True)]),
    ]
    for length, closed, expected in cases:
        for answers in (1, 4):
            assert truncation_plan(length, closed, BUDGETS, answers) == [
                (cut, answers * shared, split, truncated)
                for split, (cut, shared, truncated) in enumerate(expected)
            ], (length, closed)


def test_truncation_plan_of_a_short_thought() -> None:
    assert truncation_plan(5, True, (2, 4, 6, 8), 1) == [
        (2, 1, 0, True),
        (4, 1, 1, True),
        (5, 2, 2, False),
    ]


def test_thought_advantages_refuses() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"mode": "v3only"}, "mode 'v3only' is unknown; use 'brpo', 'v1only', 'v2only', 'none'"),
        ({"decay": 0.0}, "decay 0.0 must be greater than 0 and at most 1"),
        ({"decay": 1.5}, "decay 1.5 must be"),
    ]
    for arguments, message in cases:
        with pytest.raises(ValueError, match=message):
            thought_advantages(SCORES_GM, prior("uniform", BUDGETS), **arguments)


def test_scores_must_fit_the_prior() -> None:
    with pytest.raises(ValueError, match=r"shape \(2, 4\) do not fit 1 prior weights"):
        thought_advantages(SCORES_GM, [1.0])


def test_unknown_answer_method() -> None:
    with pytest.raises(ValueError, match="answer method 'rloo' is unknown; use 'brpo' or 'grpo'"):
        answer_advantages([[0.0]], [[0]], 1, method="rloo")


def test_how_well_the_baselines_predict_the_return() -> None:
    """Two groups of two thoughts under two budgets, worked by hand.

    Slot 0: R = 0, 1, .5, 1 and V2 = .5, .5, .75, .75, so Var[R] = 11/64 and Var[V2] = 1/64.
    Slot 1: R = 0, .5, .5, .5, V1 = 0, .5, 0, .5 and V2 = .25, .25, .5, .5. V is their mean there.
    """
    groups = [baselines(scores, [0.5, 0.5]) for scores in ([[0, 0], [1, 1]], [[0, 1], [1, 1]])]
    quality = baseline_quality(groups, [np.ones((2, 2))] * 2)
    expected: dict[str, tuple[list[float], list[float]]] = {
        "v1": ([0, 1 / np.sqrt(3)], [1, 1]),
        "v2": ([1 / np.sqrt(11), 1 / np.sqrt(3)], [10 / 11, 2 / 3]),
        "v": ([1 / np.sqrt(11), np.sqrt(0.6)], [10 / 11, 5 / 12]),
    }
    assert list(quality) == list(expected)
    for name, (correlation_M, variance_M) in expected.items():
        assert_allclose(quality[name].correlation, correlation_M, atol=1e-12, err_msg=name)
        assert_allclose(quality[name].variance, variance_M, atol=1e-12, err_msg=name)


def test_slots_without_tokens_or_variance_have_no_quality() -> None:
    groups = [baselines(scores, [0.5, 0.5]) for scores in ([[0, 0], [1, 1]], [[0, 1], [1, 1]])]
    # Without the first thought, all returns in slot 1 are .5.
    quality = baseline_quality(groups, [[[1, 0], [1, 1]], [[1, 1], [1, 1]]])
    assert_allclose(quality["v"].variance, [10 / 11, np.nan])
    assert_allclose(quality["v1"].correlation, [0, np.nan])
    # Only one thought reaches slot 1.
    quality = baseline_quality(groups, [[[1, 0], [1, 1]], [[1, 0], [1, 0]]])
    assert_allclose(quality["v2"].correlation, [1 / np.sqrt(11), np.nan])
