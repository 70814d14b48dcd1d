"""Budget-relative policy optimisation: advantages of thoughts that are cut at several budgets.

Source: Qi et al., "Optimizing Anytime Reasoning via Budget Relative Policy Optimization",
arXiv 2505.13438v3. The equation numbers below are those of the paper. No advantage is divided by a
standard deviation.

Shapes: G episodes of one problem; M increasing budgets, counted s = 0..M-1; A answers per budget;
N = M * A answers of one episode, in slot order. The answers at budget s are entries
[s * A, (s + 1) * A). Slot s of a thought is its tokens [budget[s - 1], budget[s]).

V1 is a baseline from the same thought under smaller budgets. V2 is a baseline from all thoughts of
the group. Mode `v1only` therefore rewards the progress of a thought, and `v2only` resembles GRPO.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

V_NAMES = ("v1", "v2", "v")
SMALLEST_VARIANCE = 1e-12
"""A smaller variance of scores between 0 and 1 is rounding, and the numbers are constant."""


class Baselines(NamedTuple):
    """Returns, and what is subtracted from them: one number per thought and slot, float64[G, M]."""

    returns: Array
    v1: Array
    v2: Array
    v: Array
    """The mix of V1 and V2 (Eq. 9)."""


class Quality(NamedTuple):
    """How well a baseline predicts the return in each slot (Figure 3), float64[M] each."""

    correlation: Array
    """Correlation of baseline and return. 0 for a constant baseline."""
    variance: Array
    """Var[R - V] / Var[R]. 0 for a perfect baseline, 1 for a baseline of 0."""


class Branch(NamedTuple):
    """One distinct position where a thought is cut, and the answers sampled there."""

    cut: int
    """Thought tokens kept."""
    answers: int
    """Answers to sample here: A times the number of budgets that share this cut."""
    split: int
    """Number of this cut among the distinct cuts of the thought, from 0."""
    truncated: bool
    """True if the end of the thought has to be forced, False if the thought closed itself here."""


def prior(name: str, budgets: Sequence[int]) -> Array:
    """Return the weight of each budget in the return of a thought (Section 3.1), float64[M], sum 1.

    `base` puts everything on the largest budget, `uniform` gives all budgets the same weight, and
    `linear` weighs each in proportion to its tokens. Raises ValueError for another name.
    """
    match name:
        case "base":
            weights_M = np.zeros(len(budgets))
            weights_M[-1] = 1.0
        case "uniform":
            weights_M = np.ones(len(budgets))
        case "linear":
            weights_M = np.asarray(budgets, dtype=np.float64)
        case _:
            raise ValueError(f"prior {name!r} is unknown; use 'base', 'uniform' or 'linear'")
    total: float = weights_M.sum()
    return weights_M / total


def budget_coefficients(budgets: Sequence[int]) -> Array:
    """Return the share of V1 by tokens, budget[s - 1] / budget[-1] (Figure 1), float64[M].

    The published code and Eq. 9 use the index instead, s / M. Both give the same shares if the
    budgets are evenly spaced.
    """
    return np.array([0, *budgets[:-1]], dtype=np.float64) / budgets[-1]


def returns(scores: ArrayLike, prior: ArrayLike) -> Array:
    """Return R[g, s] = sum over k >= s of prior[k] * scores[g, k] (Eq. 6), float64[G, M].

    A token can only influence the answers given after it, so earlier budgets do not count.
    """
    # A sum over k >= s is a cumulative sum that runs from the last budget to the first.
    weighted_GM = np.asarray(prior, dtype=np.float64) * np.asarray(scores, dtype=np.float64)
    return np.cumsum(weighted_GM[:, ::-1], axis=1)[:, ::-1]


def progress_baseline(scores: ArrayLike, prior: ArrayLike, decay: float) -> Array:
    """Return V1 (Eq. 7), float64[G, M]: a weighted mean of the earlier scores of the same thought.

    The score at budget k < s has the weight decay ** (s - k), normalised, so the newest score has
    the largest weight. The mean is multiplied by the sum of the prior from s on, which scales it to
    the size of the return. V1[:, 0] is 0, because no score comes before slot 0.
    """
    prior_M = np.asarray(prior, dtype=np.float64)
    slots_M = np.arange(prior_M.size)
    age_MM = slots_M[:, None] - slots_M
    # The exponent s - k - 1 makes the newest weight exactly 1; normalising removes the shift again.
    # Every row except the first then sums to at least 1. So the division below can use 1 as the
    # smallest divisor, and the empty first row stays 0. tril removes the upper triangle; `abs` only
    # prevents an overflow there.
    weights_MM = np.tril(np.power(decay, np.abs(age_MM - 1)), k=-1)
    weights_MM /= np.maximum(weights_MM.sum(axis=1, keepdims=True), 1.0)
    # The return at s is a sum over the budgets from s on, weighted by the prior. The mean score
    # times the sum of these weights is the return of a thought that stays as good as it was before.
    remaining_M = np.cumsum(prior_M[::-1])[::-1]
    mean_GM: Array = np.asarray(scores, dtype=np.float64) @ weights_MM.T
    return remaining_M * mean_GM


def group_baseline(returns_GM: Array) -> Array:
    """Return V2 (Eq. 8), float64[1, M]: the mean return over all thoughts of the group.

    A group of one thought has no baseline: V2 is 0.
    """
    # The mean of one return is the return itself. As a baseline it would make every advantage 0,
    # and a group of one would train nothing.
    if len(returns_GM) == 1:
        return np.zeros_like(returns_GM)
    mean_1M: Array = returns_GM.mean(axis=0, keepdims=True)
    return mean_1M


def baselines(
    scores: ArrayLike,
    prior: ArrayLike,
    *,
    decay: float = 0.5,
    coefficients: ArrayLike | None = None,
) -> Baselines:
    """Return the returns of a group and its baselines. Arguments: see `thought_advantages`."""
    num_budgets = np.size(prior)
    returns_GM = returns(scores, prior)
    # V1 averages the earlier scores of the same thought. Slot 0 has none, so V1 has share 0 there.
    # Later slots have more of them, V1 gets less noisy, and its share increases.
    share_M = np.arange(num_budgets) / num_budgets
    if coefficients is not None:
        share_M = np.asarray(coefficients, dtype=np.float64)
    v1_GM = progress_baseline(scores, prior, decay)
    v2_GM = np.broadcast_to(group_baseline(returns_GM), returns_GM.shape)
    return Baselines(returns_GM, v1_GM, v2_GM, share_M * v1_GM + (1.0 - share_M) * v2_GM)


def baseline_quality(
    groups: Sequence[Baselines], present: Sequence[ArrayLike]
) -> dict[str, Quality]:
    """Return how well V1, V2 and their mix V predict the return, per slot (Figure 3).

    All thoughts of all groups are compared at once. Within one group V2 is constant, so a
    correlation with it exists only across groups.

    Args:
        groups: at least one group, all with the same budgets.
        present: per group bool[G, M], True if the thought has a token in the slot. Only these
            entries count, because the others have no token that the baseline is for.

    Returns:
        One Quality for each of `v1`, `v2` and `v`. A slot is NaN if the return has no variance
        there, or if fewer than two thoughts have the slot.
    """
    # B thoughts of all groups.
    merged = Baselines(*(np.concatenate(arrays) for arrays in zip(*groups, strict=True)))
    present_BM = np.concatenate([np.asarray(one, dtype=np.bool_) for one in present])
    return {name: _quality(merged.returns, getattr(merged, name), present_BM) for name in V_NAMES}


def _quality(returns_BM: Array, baseline_BM: Array, present_BM: NDArray[np.bool_]) -> Quality:
    num_budgets = returns_BM.shape[1]
    correlation_M, variance_M = np.full((2, num_budgets), np.nan)
    for slot in range(num_budgets):
        returns_K = returns_BM[present_BM[:, slot], slot]
        baseline_K = baseline_BM[present_BM[:, slot], slot]
        if len(returns_K) < 2 or (of_returns := returns_K.var()) < SMALLEST_VARIANCE:
            continue
        variance_M[slot] = (returns_K - baseline_K).var() / of_returns
        of_baseline = baseline_K.var()
        covariance = ((returns_K - returns_K.mean()) * (baseline_K - baseline_K.mean())).mean()
        constant = of_baseline < SMALLEST_VARIANCE
        correlation_M[slot] = 0.0 if constant else covariance / np.sqrt(of_returns * of_baseline)
    return Quality(correlation_M, variance_M)


def thought_advantages(
    scores: ArrayLike,
    prior: ArrayLike,
    *,
    mode: str = "brpo",
    decay: float = 0.5,
    coefficients: ArrayLike | None = None,
) -> Array:
    """Return the advantage of every slot of every thought (Eq. 9), float64[G, M].

    Args:
        scores: [G, M] mean score of the A answers at each budget.
        prior: [M] weight of each budget, summing to 1; see `prior`.
        mode: baseline subtracted from the return. `brpo` mixes V1 and V2; `v1only` and `v2only`
            use one of them; `none` uses 0; `notrain` uses the return itself, so thoughts are not
            trained and only answers are.
        decay: weight of a score in V1 relative to the score one budget later, in (0, 1].
        coefficients: [M] share of V1 in the mix; None is s / M. See `budget_coefficients`.

    Raises:
        ValueError: unknown mode, decay outside (0, 1], or scores and prior that do not fit.
    """
    num_budgets = np.size(prior)
    if np.shape(scores)[1:] != (num_budgets,):
        raise ValueError(
            f"scores of shape {np.shape(scores)} do not fit {num_budgets} prior weights; "
            "use one row per episode and one column per budget"
        )
    if not 0 < decay <= 1:
        raise ValueError(f"decay {decay} must be greater than 0 and at most 1")
    found = baselines(scores, prior, decay=decay, coefficients=coefficients)
    match mode:
        case "brpo":
            baseline_GM = found.v
        case "v1only":
            baseline_GM = found.v1
        case "v2only":
            baseline_GM = found.v2
        case "none":
            baseline_GM = np.zeros_like(found.returns)
        case "notrain":
            baseline_GM = found.returns  # the advantage is exactly 0
        case _:
            raise ValueError(
                f"mode {mode!r} is unknown; use 'brpo', 'v1only', 'v2only', 'none' or 'notrain'"
            )
    return found.returns - baseline_GM


def answer_advantages(
    scores: ArrayLike, splits: ArrayLike, answers: int, *, method: str = "brpo"
) -> Array:
    """Return the advantage of every answer (Section 2.3, published code), float64[G, N].

    With A >= 2 the baseline is the mean score of all answers of the same episode at the same cut.
    With A == 1 a cut may have a single answer, so the baseline is the mean of the slot over
    episodes.

    Args:
        scores: [G, N] score of each answer, in slot order.
        splits: [G, N] number of the cut that each answer follows; see `truncation_plan`.
        answers: A, answers per budget.
        method: `brpo` trains every answer, `grpo` only the last entry (at the full budget).

    Raises:
        ValueError: unknown method.
    """
    if method not in ("brpo", "grpo"):
        raise ValueError(f"answer method {method!r} is unknown; use 'brpo' or 'grpo'")
    scores_GN = np.asarray(scores, dtype=np.float64)
    if answers == 1:
        # A cut has only one answer here (or one per budget that shares it). Its own score as the
        # baseline would make the advantage 0, so the baseline comes from the other episodes too.
        baseline_GN = scores_GN.mean(axis=0, keepdims=True)
    else:
        # Group by cut and not by budget: if a thought ends early, all larger budgets keep the same
        # tokens, so their answers are samples from the same distribution.
        splits_GN = np.asarray(splits)
        siblings_GNN = splits_GN[:, :, None] == splits_GN[:, None, :]
        sums_GN = np.einsum("gij,gj->gi", siblings_GNN, scores_GN)
        baseline_GN = sums_GN / siblings_GNN.sum(axis=2)
    advantages_GN: Array = scores_GN - baseline_GN
    if method == "grpo":
        advantages_GN[:, :-1] = 0.0
    return advantages_GN


def truncation_plan(
    length: int, closed: bool, budgets: Sequence[int], answers: int
) -> list[Branch]:
    """Return where a thought is cut and how many answers each cut gets, in order of the cuts.

    A thought of `length` tokens is cut at every budget below `length`. All budgets from `length` on
    share one cut, which keeps the whole thought. So every episode has M * A answers. `length`
    includes the end-of-thought token if the policy sampled one; `closed` is True in that case.

    Example: truncation_plan(20, True, (16, 32, 48), 2) == [(16, 2, 0, True), (20, 4, 1, False)]
    """
    # groupby joins only neighbours. That is enough: budgets increase, so equal cuts are neighbours.
    # Equal cuts share one branch, and the kept tokens are packed and evaluated once.
    cuts = [min(budget, length) for budget in budgets]
    return [
        Branch(cut, answers * len(list(shared)), split, not (closed and cut == length))
        for split, (cut, shared) in enumerate(groupby(cuts))
    ]
