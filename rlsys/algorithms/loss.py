"""Losses on flat tokens, and the sums from which their metrics are made.

A loss is a sum over tokens of weight * term, and the weights already contain the normaliser of the
whole mini-batch (`token_scale`). So the losses of any split into micro-batches, accumulation steps
and ranks add up to the same total, and so do the gradients; no part of a split may average.

Metrics follow the same rule. The ending of a name defines how two parts join and what is reported:

    tokens      added              trained tokens (weight not 0)
    pairs       added              pairs, if the loss is over pairs; then they are the divisor
    NAME_sum    added              NAME_mean = sum / tokens
    NAME_count  added              NAME_share = count / tokens
    NAME_max    larger one         NAME_max

Shape: T tokens of one micro-batch, rows joined.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rlsys.config import LossConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class LossInputs:
    """Inputs of the policy loss, each [T]; where the weight is 0 the other values are not used."""

    logprobs_T: Tensor
    """Log-probs under the weights being trained; the gradient flows through these."""
    old_logprobs_T: Tensor
    """Log-probs by the learner under the weights at the start of the training step."""
    sampled_logprobs_T: Tensor
    """Log-probs by the engine that sampled the tokens."""
    advantages_T: Tensor
    weights_T: Tensor
    """`token_scale` times the segment's weight; 0 on tokens that are not trained."""
    reference_logprobs_T: Tensor | None = None
    """Log-probs under the frozen starting policy; needed if kl_coefficient is not 0."""
    entropy_T: Tensor | None = None
    """Entropy of the distribution of each token; needed if entropy_coefficient is not 0."""


def policy_loss(inputs: LossInputs, config: LossConfig) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss, a scalar, and its metric sums.

    Per token: the clipped surrogate of PPO (Schulman et al., arXiv 1707.06347, Eq. 7) with its own
    bound on each side (DAPO, arXiv 2503.14476, Eq. 10), times the truncated importance weight
    min(exp(old - sampled), cap) between learner and engine, plus the k3 estimate of the KL
    divergence to the reference (Schulman, "Approximating KL divergence", 2020), minus the entropy
    bonus.
    """
    assert inputs.reference_logprobs_T is not None or config.kl_coefficient == 0
    assert inputs.entropy_T is not None or config.entropy_coefficient == 0
    # Not by the advantage: a trained token may have advantage 0, and still counts in every mean and
    # in the KL and entropy terms.
    trained_T = inputs.weights_T != 0
    loss_T, metrics = _surrogate(inputs, trained_T, config)
    if inputs.reference_logprobs_T is not None:
        reference_kl_T = _k3(
            _clean(trained_T, inputs.logprobs_T), _clean(trained_T, inputs.reference_logprobs_T)
        )
        metrics["reference_kl_sum"] = _total(trained_T, reference_kl_T)
        loss_T = loss_T + config.kl_coefficient * reference_kl_T
    if inputs.entropy_T is not None:
        entropy_T = _clean(trained_T, inputs.entropy_T)
        metrics["entropy_sum"] = _total(trained_T, entropy_T)
        loss_T = loss_T - config.entropy_coefficient * entropy_T
    return (inputs.weights_T * loss_T).sum(), metrics


def _surrogate(
    inputs: LossInputs, trained_T: Tensor, config: LossConfig
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the clipped, importance-weighted surrogate of every token and its metric sums."""
    # Untrained tokens are set to 0 before exp. Their weight of 0 would not be enough: 0 times NaN
    # or infinity is NaN, in the gradient too.
    logprobs_T = _clean(trained_T, inputs.logprobs_T)
    old_T = _clean(trained_T, inputs.old_logprobs_T)
    sampled_T = _clean(trained_T, inputs.sampled_logprobs_T)
    advantages_T = _clean(trained_T, inputs.advantages_T)

    low, high = 1.0 - config.clip_low, 1.0 + config.clip_high
    # The probability ratio to the engine is split in two. `ratio` compares the learner with itself,
    # so the clip bounds what the update changes. `importance` compares learner and engine, which
    # differ by rounding and by stale weights; it is a constant factor and gets no gradient.
    ratio_T = torch.exp(logprobs_T - old_T)
    importance_T = torch.exp(old_T - sampled_T).detach()
    # Only the upper side is bounded: a large weight lets one token dominate the batch, a small one
    # merely removes a token that the learner would hardly sample.
    weight_T = importance_T.clamp(max=config.importance_cap)
    # The minimum is a lower bound of the gain: leaving the interval is never rewarded, but the way
    # back into it keeps its gradient.
    surrogate_T = torch.minimum(ratio_T * advantages_T, ratio_T.clamp(low, high) * advantages_T)

    # The clip acts only where the ratio has already moved in the direction of the advantage, so
    # only these tokens count as clipped.
    gap_T = (old_T - sampled_T).detach().abs()
    clipped_low_T = (ratio_T < low) & (advantages_T < 0)
    clipped_high_T = (ratio_T > high) & (advantages_T > 0)
    return -weight_T * surrogate_T, {
        "tokens": _total(trained_T, trained_T),
        "ratio_sum": _total(trained_T, ratio_T),
        "ratio_max": _clean(trained_T, ratio_T.detach()).max(),
        "clip_low_count": _total(trained_T, clipped_low_T),
        "clip_high_count": _total(trained_T, clipped_high_T),
        "kl_k1_sum": _total(trained_T, old_T - logprobs_T),
        "kl_k3_sum": _total(trained_T, _k3(old_T, logprobs_T)),
        "engine_gap_sum": _total(trained_T, gap_T),
        "engine_gap_max": gap_T.max(),
        "importance_sum": _total(trained_T, weight_T),
        # Compared before the clamp: afterwards nothing exceeds the cap.
        "importance_truncated_count": _total(trained_T, importance_T > config.importance_cap),
    }


def nll_loss(logprobs_T: Tensor, weights_T: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the weighted negative log-likelihood of supervised tokens, and its metric sums."""
    trained_T = weights_T != 0
    nll_T = -_clean(trained_T, logprobs_T)
    metrics = {"tokens": _total(trained_T, trained_T), "nll_sum": _total(trained_T, nll_T)}
    return (weights_T * nll_T).sum(), metrics


def token_scale(
    aggregation: Literal["constant", "token_mean", "sequence_mean"],
    *,
    episodes: int,
    constant: int,
    trained_tokens: int,
    episode_tokens: int,
) -> float:
    """Return the factor on the tokens of one episode that turns a sum over tokens into an average.

    Args:
        aggregation: `constant` favours no length (Dr. GRPO), `token_mean` weighs every token of the
            mini-batch alike (DAPO), `sequence_mean` every episode alike (GRPO).
        episodes: episodes of the whole mini-batch, over all micro-batches and ranks.
        constant: tokens per episode that `constant` divides by.
        trained_tokens: trained tokens of the whole mini-batch.
        episode_tokens: trained tokens of this episode.
    """
    match aggregation:
        case "constant":
            return 1.0 / (episodes * constant)
        case "token_mean":
            return 1.0 / trained_tokens
        case "sequence_mean":
            return 1.0 / (episodes * episode_tokens)


ADVANTAGE_EPSILON = 1e-8
"""Added to the mean square: a step without any signal must not scale up rounding errors."""


def advantage_scale(square_sum: float, episodes: float) -> float:
    """Return the factor on all advantages of a training step that makes their mean square 1.

    This is batch normalisation (REINFORCE++, arXiv 2501.03262; DLER, arXiv 2510.15110) without its
    subtraction of the batch mean. Where a method removes the mean of each group, the mean over
    episodes is 0 already. And a shift would give groups without a signal, whose advantages are all
    0, an advantage.

    Args:
        square_sum: sum over episodes of the mean squared advantage of the episode's trained tokens.
        episodes: episodes with a trained token.
    """
    return float((square_sum / max(episodes, 1.0) + ADVANTAGE_EPSILON) ** -0.5)


def merge_metrics(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Join the metric sums of two parts of a mini-batch, which must have the same names."""
    return {
        name: torch.maximum(left[name], right[name]) if is_max(name) else left[name] + right[name]
        for name in left
    }


def is_max(name: str) -> bool:
    """True for metrics of which the larger one is kept, False for those that are added."""
    return name.endswith("_max")


def summarise(metric_sums: Mapping[str, Tensor]) -> dict[str, float]:
    """Return what is reported for the sums of a whole mini-batch: means, shares, maxima, tokens."""
    # A mini-batch without trained tokens reports zeros instead of dividing by zero.
    units = max(float(metric_sums.get("pairs", metric_sums["tokens"])), 1.0)
    summary: dict[str, float] = {}
    for name, value in metric_sums.items():
        stem, _, ending = name.rpartition("_")
        match ending:
            case "sum":
                summary[f"{stem}_mean"] = float(value) / units
            case "count":
                summary[f"{stem}_share"] = float(value) / units
            case _:
                summary[name] = float(value)
    return summary


def _clean(trained_T: Tensor, values_T: Tensor) -> Tensor:
    """Replace the values of untrained tokens by 0."""
    return torch.where(trained_T, values_T, 0.0)


def _total(trained_T: Tensor, values_T: Tensor) -> Tensor:
    """Sum over trained tokens, in float64: a float32 sum of ones stops growing at 2 ** 24."""
    return _clean(trained_T, values_T.detach()).sum(dtype=torch.float64)


def _k3(logprobs_T: Tensor, other_T: Tensor) -> Tensor:
    """Estimate KL(policy || other) on tokens that the policy sampled: never negative, low variance.

    With r = other / policy it is r - 1 - log r, the plain estimate -log r plus a term of mean 0.
    """
    # expm1 keeps the digits that exp(x) - 1 would lose for the tiny x of two nearly equal policies.
    log_ratio_T = other_T - logprobs_T
    return torch.expm1(log_ratio_T) - log_ratio_T
