"""Estimates against numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from finished_groups import report

from rlsys.estimates import (
    Estimate,
    bootstrap_mean,
    bootstrap_sets,
    majority_at_k,
    paired_bootstrap,
    pass_at_k,
    token_ratios,
)
from rlsys.training.evaluation import curve_estimates


def test_pass_at_k() -> None:
    cases = [
        # samples, right, k, share of the subsets of k samples with a right one
        (4, 1, 1, 1 / 4),
        (4, 1, 2, 1 / 2),  # 3 of the 6 pairs contain the right one
        (4, 2, 2, 5 / 6),  # 1 of the 6 pairs has only wrong ones
        (5, 2, 3, 9 / 10),  # 1 of the 10 triples has only wrong ones
        (4, 0, 4, 0),
        (4, 3, 2, 1),  # every pair contains a right one
        (1, 1, 1, 1),
    ]
    for samples, right, k, expected in cases:
        assert pass_at_k(samples, right, k) == pytest.approx(expected), (samples, right, k)
    for samples, right, k in ((4, 1, 0), (4, 1, 5), (4, 5, 1), (4, -1, 1)):
        with pytest.raises(ValueError, match="does not exist"):
            pass_at_k(samples, right, k)


def test_pass_at_k_has_no_bias() -> None:
    """Four samples that are right with probability 1/2: pass@2 is 3/4 on average."""
    binomial = np.array([1, 4, 6, 4, 1]) / 16
    assert binomial @ [pass_at_k(4, right, 2) for right in range(5)] == pytest.approx(3 / 4)


def test_equal_differences_have_no_interval() -> None:
    assert paired_bootstrap([[1, 0], [0, 1]], [[0.5, -0.5], [-0.5, 0.5]]) == (0.5, 0.5, 0.5)
    assert bootstrap_mean([0.5, 0.5]) == Estimate(0.5, 0.5, 0.5)


def test_two_problems_or_two_seeds() -> None:
    """A quarter of the resamples draws one of two values twice, so both ends are reached."""
    assert paired_bootstrap([[0, 1]], [[0, 0]]) == (0.5, 0, 1)
    assert paired_bootstrap([[0], [1]], [[0], [0]]) == (0.5, 0, 1)


def test_intervals_contain_the_variation_between_seeds() -> None:
    """100 problems of which half improve: the deviation of the mean is .5 / 10 = .05.

    Four seeds with the differences -.1, 0, 0 and .1 add a deviation of sqrt(.005) / 2 = .035.
    """
    problems_P = np.repeat([0.0, 1.0], 50)
    one = paired_bootstrap([problems_P], [np.zeros(100)])
    assert one.mean == 0.5
    assert one.high - one.low == pytest.approx(2 * 1.96 * 0.05, abs=0.02)
    seeds_S1 = np.array([[-0.1], [0.0], [0.0], [0.1]])
    four = paired_bootstrap(problems_P + seeds_S1, np.zeros((4, 100)))
    assert four.high - four.low == pytest.approx(2 * 1.96 * np.hypot(0.05, 0.0354), abs=0.025)


def test_scores_that_cannot_be_paired_are_refused() -> None:
    for first, second in (([[1, 2]], [[1], [2]]), ([1, 2], [1, 2]), ([[]], [[]])):
        with pytest.raises(ValueError, match="one row per training seed"):
            paired_bootstrap(first, second)


def test_an_evaluation_reports_intervals_and_pass_at_k() -> None:
    """Two problems with two samples each: right once and never at 16, twice and once at 64."""
    scores = [([1, 0], [1, 1]), ([0, 0], [0, 1])]
    reports = [
        replace(
            report(index, 0),
            numbers={
                "score/16": np.array(at_16, np.float32),
                "score/64": np.array(at_64, np.float32),
                "thought/length": np.array([10, 20], np.float32),
            },
        )
        for index, (at_16, at_64) in enumerate(scores)
    ]
    assert curve_estimates(reports) == {
        "low/16": 0,
        "high/16": 0.5,
        "low/64": 0.5,
        "high/64": 1,
        "low/mean": 0.25,
        "high/mean": 0.75,
        "pass_at_2/16": 0.5,
        "pass_at_2/64": 1,
    }
    # Half a score is the mean of several answers after one thought, so there is no pass@k.
    shared = [replace(report(0, 0), numbers={"score/16": np.array([0.5, 1], np.float32)})]
    assert curve_estimates(shared) == dict.fromkeys(
        ("low/16", "high/16", "low/mean", "high/mean"), 0.75
    )
    assert curve_estimates([replace(report(0, 0), numbers={})]) == {}


def test_majority_at_k() -> None:
    right_first = [True, False, False, False]
    cases: list[tuple[list[int | None], list[bool], int, float]] = [
        # votes, right, k, share of blocks of k whose most frequent answer is right
        ([0], [True], 1, 1),
        ([0, 1, 1, 2], right_first, 4, 0),  # the wrong answer 1 has two votes
        ([0, 0, 1, 2], [True, True, False, False], 4, 1),
        ([0, 1, 2, 3], right_first, 4, 1 / 4),  # one of four is chosen at random
        ([0, 0, 1, 1], [True, True, False, False], 2, 1 / 2),  # two blocks
        ([0, 1, 1], [True, False, False], 2, 1 / 2),  # the third sample fills no block
        ([0, None, None, None], right_first, 4, 1),  # no answer is no vote
        ([None, None], [False, False], 2, 0),
    ]
    for votes, right, k, expected in cases:
        assert majority_at_k(votes, right, k) == pytest.approx(expected), (votes, k)
    for few, scores, k in (([0], [True], 2), ([0], [True], 0), ([0, 1], [True], 1)):
        with pytest.raises(ValueError, match="does not exist"):
            majority_at_k(few, scores, k)


def test_the_mean_of_ratios_is_not_the_ratio_of_means() -> None:
    ratios = token_ratios([300, 2100, 7600], [600, 3200, 9000])
    assert ratios == pytest.approx((66.6898, 78.125), abs=1e-4)
    reverse = token_ratios([600, 3200, 9000], [300, 2100, 7600])
    assert reverse == pytest.approx((156.9340, 128.0), abs=1e-4)


def test_every_set_counts_the_same_in_an_average() -> None:
    # Means 1 and 0: their average is 1/2, although the first set has one problem and the other two.
    assert bootstrap_sets([[[1.0]], [[0.0, 0.0]]]) == (0.5, 0.5, 0.5)
    estimate = bootstrap_sets([[[1.0, 0.0] * 50], [[0.0] * 10]])
    assert estimate.mean == 0.25
    assert 0.18 < estimate.low < 0.22 < 0.28 < estimate.high < 0.32
    with pytest.raises(ValueError, match="one row per training seed"):
        bootstrap_sets([[[1.0]], [[0.0], [1.0]]])
    with pytest.raises(ValueError, match="one row per training seed"):
        bootstrap_sets([])


def test_training_seeds_widen_an_interval() -> None:
    problems = [0.5] * 20
    assert bootstrap_sets([[problems]]) == (0.5, 0.5, 0.5)
    seeds = bootstrap_sets([[[0.4] * 20, [0.6] * 20]])
    assert seeds == pytest.approx((0.5, 0.4, 0.6))
