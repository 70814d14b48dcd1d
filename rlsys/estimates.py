"""Estimates from samples: pass@k, and bootstrap intervals of means.

Shapes: P problems, S training seeds, R resamples.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

CONFIDENCE: Final = 0.95
RESAMPLES: Final = 2000


class Estimate(NamedTuple):
    """A mean with a bootstrap interval."""

    mean: float
    low: float
    high: float


def pass_at_k(samples: int, right: int, k: int) -> float:
    """Return the probability that at least one of k samples is right, without bias.

    `right` of the `samples` drawn for one problem are right. The estimate is the share of all
    subsets of k samples that contain a right one (Chen et al. 2021, arXiv 2107.03374, Eq. 1). The
    simpler 1 - (1 - right / samples) ** k is too small on average.

    Raises ValueError if k or `right` do not fit the number of samples.
    """
    if not 1 <= k <= samples or not 0 <= right <= samples:
        raise ValueError(
            f"pass@{k} of {samples} samples, {right} of them right, does not exist; k must be 1 to "
            "the number of samples, and at most all samples can be right"
        )
    return 1.0 - comb(samples - right, k) / comb(samples, k)


def bootstrap_mean(values: Sequence[float]) -> Estimate:
    """Return the mean with its 95 % percentile bootstrap interval (2,000 resamples, fixed seed)."""
    from scipy.stats import bootstrap

    mean = float(np.mean(values))
    if len(set(values)) == 1:
        return Estimate(mean, mean, mean)
    interval = bootstrap(
        (values,),
        np.mean,
        confidence_level=CONFIDENCE,
        n_resamples=RESAMPLES,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return Estimate(mean, float(interval.low), float(interval.high))


def paired_bootstrap(first: ArrayLike, second: ArrayLike) -> Estimate:
    """Return the mean difference first - second, with an interval over problems and over seeds.

    Every resample draws S training seeds and, independently, P problems, each with replacement. So
    the interval contains both the variation between training runs and that between problems. With
    one seed it contains only the second, which is usually too narrow for a claim about a method.
    With few seeds percentile intervals are too narrow as well; state S with the interval.

    Args:
        first: [S, P] score of each problem after training with each seed.
        second: [S, P] the same of the other method, on the same problems and with the same seeds.

    Raises ValueError if the shapes differ or are not [S, P].
    """
    first_SP, second_SP = (np.asarray(scores, dtype=np.float64) for scores in (first, second))
    if first_SP.shape != second_SP.shape or first_SP.ndim != 2 or not first_SP.size:
        raise ValueError(
            f"scores of the shapes {first_SP.shape} and {second_SP.shape} cannot be paired; both "
            "need one row per training seed and one column per problem"
        )
    difference_SP = first_SP - second_SP
    seeds, problems = difference_SP.shape
    rng = np.random.default_rng(0)
    # How often a resample draws a seed or a problem. The mean of the drawn part of the table is a
    # product with these counts, so no resampled table has to be built.
    seeds_RS = rng.multinomial(seeds, np.full(seeds, 1 / seeds), size=RESAMPLES)
    problems_RP = rng.multinomial(problems, np.full(problems, 1 / problems), size=RESAMPLES)
    sums_R = np.einsum("rs,sp,rp->r", seeds_RS, difference_SP, problems_RP, optimize=True)
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(sums_R / difference_SP.size, [tail, 100 - tail])
    return Estimate(float(difference_SP.mean()), float(low), float(high))
