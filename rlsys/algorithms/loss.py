"""Losses on flat tokens, and the sums from which their metrics are computed.

A loss is a sum over tokens of weight * term. The weights already contain the normaliser of the
whole mini-batch (`token_scale`). A mini-batch may be split into micro-batches, accumulation steps
and ranks in any way: the losses of the parts add up to the same total, and so do the gradients. No
part may divide by its own number of tokens.

Metrics follow the same rule. The last part of a name defines how the values of two parts are joined
and what is reported:

    tokens      added              trained tokens (weight not 0)
    pairs       added              pairs, if the loss is over pairs; they replace tokens as divisor
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

from rlsys.algorithms.kl import k3
from rlsys.algorithms.kl import kl_estimate as kl_estimate
from rlsys.algorithms.mismatch import importance_weights, sequence_sums
from rlsys.config import LossConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class LossInputs:
    """Inputs of the policy loss, each [T]. Values of tokens with weight 0 are ignored."""

    logprobs_T: Tensor
    """Log-probs under the weights being trained; the gradient flows through these."""
    old_logprobs_T: Tensor
    """Log-probs by the learner under the weights at the start of the training step."""
    sampled_logprobs_T: Tensor
    """Log-probs by the engine that sampled the tokens."""
    advantages_T: Tensor
    weights_T: Tensor
    """`token_scale` times the weight of the segment; 0 on tokens that are not trained."""
    reference_logprobs_T: Tensor | None = None
    """Log-probs under the frozen starting policy; required if kl_coefficient is not 0."""
    entropy_T: Tensor | None = None
    """Entropy of the distribution of each token; required if entropy_coefficient is not 0."""
    sequences_T: Tensor | None = None
    """Index of the token's response within the micro-batch, below T, as int64 or int32; negative
    for padding. Required by the surrogate `gspo` and where `importance` is a rule for sequences."""


def policy_loss(inputs: LossInputs, config: LossConfig) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss, a scalar, and its metric sums.

    Per token: the clipped surrogate (`surrogate`), times the limited importance weight between
    learner and engine (rlsys.algorithms.mismatch), plus an estimate of the KL divergence to the
    reference (rlsys.algorithms.kl), minus the entropy bonus. With `kl_in: reward` the estimate is
    only reported: the advantages contain it already.
    """
    assert inputs.reference_logprobs_T is not None or config.kl_coefficient == 0
    assert inputs.entropy_T is not None or config.entropy_coefficient == 0
    # The weight decides what is trained, not the advantage: a trained token may have advantage 0.
    # It still counts in every mean and in the KL and entropy terms.
    trained_T = inputs.weights_T != 0
    loss_T, metrics = _weighted_surrogate(inputs, trained_T, config)
    if inputs.reference_logprobs_T is not None:
        reference_kl_T = kl_estimate(
            _clean(trained_T, inputs.logprobs_T),
            _clean(trained_T, inputs.reference_logprobs_T),
            config.kl_estimator,
        )
        metrics["reference_kl_sum"] = _total(trained_T, reference_kl_T)
        if config.kl_in == "loss":
            loss_T = loss_T + config.kl_coefficient * reference_kl_T
    if inputs.entropy_T is not None:
        entropy_T = _clean(trained_T, inputs.entropy_T)
        metrics["entropy_sum"] = _total(trained_T, entropy_T)
        loss_T = loss_T - config.entropy_coefficient * entropy_T
    return (inputs.weights_T * loss_T).sum(), metrics


def surrogate(
    logprobs_T: Tensor, ratio_T: Tensor, advantages_T: Tensor, config: LossConfig
) -> Tensor:
    """Return what is maximised per token, [T].

    With r the ratio of new to old policy and A the advantage:

        ppo     min(r A, clip(r) A)      PPO, arXiv 1707.06347, Eq. 7, with its own bound on each
                                         side (DAPO, arXiv 2503.14476, Eq. 10)
        gspo    the same, r being the ratio of the response (`sequence_ratio`)
        cispo   stop_gradient(clip(r)) A log-prob      MiniMax-M1, arXiv 2506.13585

    `dual_clip` c makes it max(ppo, c A) where A is negative (arXiv 1912.09729): a token that
    became much more likely although it was bad cannot dominate the gradient.
    """
    clipped_T = ratio_T.clamp(1.0 - config.clip_low, 1.0 + config.clip_high)
    if config.surrogate == "cispo":
        return clipped_T.detach() * advantages_T * logprobs_T
    # The minimum is a lower bound of the gain. A ratio that moves further out of the interval gains
    # nothing, but a ratio on the wrong side still gets the gradient that moves it back.
    surrogate_T = torch.minimum(ratio_T * advantages_T, clipped_T * advantages_T)
    if config.dual_clip is None:
        return surrogate_T
    bounded_T = torch.maximum(surrogate_T, config.dual_clip * advantages_T)
    return torch.where(advantages_T < 0, bounded_T, surrogate_T)


def sequence_ratio(
    logprobs_T: Tensor, old_logprobs_T: Tensor, trained_T: Tensor, sequences_T: Tensor
) -> Tensor:
    """Return the geometric mean of the token ratios of a response, on each of its tokens, [T].

    GSPO, arXiv 2507.18071, in the form that the paper calls GSPO-token: the value is the
    response's, and the gradient of a token flows through the token's own log-prob. Summed over the
    tokens of a response that share an advantage, that is the gradient of the response's ratio times
    their number.

    Args:
        logprobs_T: log-probs under the weights being trained.
        old_logprobs_T: log-probs under the weights at the start of the training step.
        trained_T: bool, the tokens whose ratios count.
        sequences_T: see LossInputs.
    """
    gap_T = _clean(trained_T, logprobs_T.detach() - old_logprobs_T)
    sums_T, counts_T = sequence_sums(gap_T, trained_T, sequences_T)
    return torch.exp(sums_T / counts_T.clamp(min=1.0) + (logprobs_T - logprobs_T.detach()))


def _weighted_surrogate(
    inputs: LossInputs, trained_T: Tensor, config: LossConfig
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the clipped, importance-weighted surrogate of every token and its metric sums."""
    # Untrained tokens are set to 0 before exp. Their weight 0 alone is not enough: 0 times NaN or
    # infinity is NaN, and the gradient would be NaN too.
    logprobs_T = _clean(trained_T, inputs.logprobs_T)
    old_T = _clean(trained_T, inputs.old_logprobs_T)
    sampled_T = _clean(trained_T, inputs.sampled_logprobs_T)
    advantages_T = _clean(trained_T, inputs.advantages_T)

    low, high = 1.0 - config.clip_low, 1.0 + config.clip_high
    # The probability ratio to the engine has two factors. `ratio` compares the learner before and
    # after the update, so the clip limits the update. `importance` compares learner and engine,
    # which differ by rounding and by stale weights; it is a constant and gets no gradient.
    if config.surrogate == "gspo":
        assert inputs.sequences_T is not None
        ratio_T = sequence_ratio(logprobs_T, old_T, trained_T, inputs.sequences_T)
    else:
        ratio_T = torch.exp(logprobs_T - old_T)
    weight_T, limited_T = importance_weights(
        (old_T - sampled_T).detach(), trained_T, inputs.sequences_T, config
    )
    surrogate_T = surrogate(logprobs_T, ratio_T, advantages_T, config)

    # The clip acts only where the ratio has already moved in the direction of the advantage, so
    # only these tokens count as clipped.
    gap_T = (old_T - sampled_T).detach().abs()
    # The clip of `cispo` limits the weight of a token whatever the sign of its advantage.
    both = config.surrogate == "cispo"
    clipped_low_T = (ratio_T < low) & ((advantages_T < 0) | both)
    clipped_high_T = (ratio_T > high) & ((advantages_T > 0) | both)
    return -weight_T * surrogate_T, {
        "tokens": _total(trained_T, trained_T),
        "ratio_sum": _total(trained_T, ratio_T),
        "ratio_max": _clean(trained_T, ratio_T.detach()).max(),
        "clip_low_count": _total(trained_T, clipped_low_T),
        "clip_high_count": _total(trained_T, clipped_high_T),
        "kl_k1_sum": _total(trained_T, old_T - logprobs_T),
        "kl_k3_sum": _total(trained_T, k3(old_T, logprobs_T)),
        "engine_gap_sum": _total(trained_T, gap_T),
        "engine_gap_max": gap_T.max(),
        "importance_sum": _total(trained_T, weight_T),
        "importance_truncated_count": _total(trained_T, limited_T),
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
        aggregation: `constant` divides by a fixed length, so no length is preferred (Dr. GRPO);
            `token_mean` gives every token of the mini-batch the same weight (DAPO); `sequence_mean`
            gives every episode the same weight (GRPO).
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
    0, an advantage. Only `normalise_advantages: whiten` subtracts the mean, before this factor.

    Args:
        square_sum: sum over episodes of the mean squared advantage of the episode's trained tokens.
        episodes: episodes with a trained token.
    """
    return float((square_sum / max(episodes, 1.0) + ADVANTAGE_EPSILON) ** -0.5)


def batch_normalisation(
    total: float, square_sum: float, episodes: float, *, whiten: bool
) -> tuple[float, float]:
    """Return (shift, scale): an advantage A of a training step becomes (A - shift) * scale.

    `whiten` subtracts the mean over episodes first (REINFORCE++, arXiv 2501.03262); otherwise the
    shift is 0. The scale is `advantage_scale` of what is left.

    Args:
        total: sum over episodes of the mean advantage of the episode's trained tokens.
        square_sum: the same sum of squared advantages.
        episodes: episodes with a trained token.
        whiten: subtract the mean.
    """
    shift = total / max(episodes, 1.0) if whiten else 0.0
    # The sum of (A - shift)^2. Rounding may leave a tiny negative number where all are equal.
    left = max(square_sum - 2 * shift * total + episodes * shift**2, 0.0)
    return shift, advantage_scale(left, episodes)


def merge_metrics(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Join the metric sums of two parts of a mini-batch. Both must have the same names."""
    return {
        name: torch.maximum(left[name], right[name]) if is_max(name) else left[name] + right[name]
        for name in left
    }


def is_max(name: str) -> bool:
    """True if the larger of two values is kept, False if the two are added."""
    return name.endswith("_max")


def summarise(metric_sums: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the reported metrics of a whole mini-batch: means, shares, maxima and tokens."""
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
