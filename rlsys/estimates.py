"""Estimates from samples: pass@k, majority votes, token ratios, bootstrap intervals of means.

Shapes: P problems, S training seeds, R resamples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import comb
from statistics import fmean
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


def majority_at_k(votes: Sequence[int | None], right: Sequence[bool], k: int) -> float:
    """Return how often the most frequent answer of k samples is right.

    The samples are divided into blocks of k in their order, and the mean over whole blocks is
    returned; the samples of different blocks are independent. Of several answers with the most
    votes, one is taken to be chosen at random, so the result of a block may be a fraction.

    Args:
        votes: of every sample, a number that equal answers share; None without an answer, which is
            no vote.
        right: of every sample, whether its answer is right.
        k: samples per vote.

    Raises ValueError if there are fewer than k samples, or if the lengths differ.
    """
    if not 1 <= k <= len(votes) or len(votes) != len(right):
        raise ValueError(
            f"a majority of {k} samples does not exist for {len(votes)} votes with {len(right)} "
            "scores; k must be 1 to the number of samples"
        )
    truth = dict(zip(votes, right, strict=True))
    blocks = [votes[start : start + k] for start in range(0, len(votes) - k + 1, k)]
    return fmean(_right_share(block, truth) for block in blocks)


def _right_share(block: Sequence[int | None], truth: dict[int | None, bool]) -> float:
    counts = Counter(vote for vote in block if vote is not None)
    most = max(counts.values(), default=0)
    leaders = [vote for vote, count in counts.items() if count == most]
    return fmean(truth[vote] for vote in leaders) if leaders else 0.0


class TokenRatios(NamedTuple):
    """Tokens of one evaluation in percent of those of another one, on the same sets."""

    mean_of_ratios: float
    """The mean over sets of each set's ratio: every set counts the same."""
    ratio_of_means: float
    """The ratio of the mean tokens: sets with long responses count more."""


def token_ratios(tokens: Sequence[float], baseline: Sequence[float]) -> TokenRatios:
    """Return tokens / baseline in percent, from the mean tokens of each set in the same order.

    Example: token_ratios([300, 2100], [600, 3200]) == (57.8125, 63.157...)
    """
    ratios = [100 * own / other for own, other in zip(tokens, baseline, strict=True)]
    return TokenRatios(fmean(ratios), 100 * fmean(tokens) / fmean(baseline))


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
    return bootstrap_sets([first_SP - second_SP])


def bootstrap_sets(sets: Sequence[ArrayLike]) -> Estimate:
    """Return the mean over sets of each set's mean, with an interval over problems and over seeds.

    Every resample draws S training seeds, the same for all sets, and in every set its P problems
    independently. Every set counts the same, however many problems it has. With one seed the
    interval contains the variation between problems only.

    Args:
        sets: of each set, [S, P] the score, or the difference of two scores, of each problem after
            training with each seed. P may differ between the sets.

    Raises ValueError if there is no set, or if the sets differ in S.
    """
    scores = [np.asarray(of_set, dtype=np.float64) for of_set in sets]
    if not scores or {s.ndim for s in scores} != {2} or len({len(s) for s in scores}) > 1:
        raise ValueError(
            f"scores of the shapes {[s.shape for s in scores]} have no common mean; every set "
            "needs one row per training seed, the same number in all sets"
        )
    seeds = len(scores[0])
    rng = np.random.default_rng(0)
    # How often a resample draws a seed or a problem. The mean of the drawn part of the table is a
    # product with these counts, so no resampled table has to be built.
    seeds_RS = rng.multinomial(seeds, np.full(seeds, 1 / seeds), size=RESAMPLES)
    means_R = np.zeros(RESAMPLES)
    for scores_SP in scores:
        problems = scores_SP.shape[1]
        problems_RP = rng.multinomial(problems, np.full(problems, 1 / problems), size=RESAMPLES)
        sums_R = np.einsum("rs,sp,rp->r", seeds_RS, scores_SP, problems_RP, optimize=True)
        means_R += sums_R / (scores_SP.size * len(scores))
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(means_R, [tail, 100 - tail])
    mean = np.mean([scores_SP.mean() for scores_SP in scores])
    return Estimate(float(mean), float(low), float(high))
