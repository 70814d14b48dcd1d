"""Estimates against numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from finished_groups import report

from rlsys.estimates import Estimate, bootstrap_mean, paired_bootstrap, pass_at_k
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
