"""Correction for the difference between the engine that sampled and the learner that trains.

Both compute the same policy with other kernels, and the engine's weights may be older. With w the
ratio of probabilities learner / engine, a token trained with weight w has the right expected
gradient. But a few very large weights would dominate it, so the weights are limited:

    truncate           min(w, cap)                                       TIS
    icepop             w if floor <= w <= cap, else 0                    IcePop, arXiv 2510.18855
    sequence_truncate  min(product of w over the response, cap)          sequence-level TIS
    sequence_mask      w if floor <= geometric mean of w <= cap, else 0  geometric sequence mask
    none               1                                                 no correction

TIS: Yao et al., "Your efficient RL framework secretly brings you off-policy RL training", 2025.

Shape: T tokens of one micro-batch, rows joined.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rlsys.config import LossConfig


def importance_weights(
    log_ratio_T: Tensor, trained_T: Tensor, sequences_T: Tensor | None, config: LossConfig
) -> tuple[Tensor, Tensor]:
    """Return the weight of every token [T], and a bool [T] that is True where a limit acted.

    Args:
        log_ratio_T: log-prob of the learner - log-prob of the engine; 0 on untrained tokens.
        trained_T: bool, the tokens that are trained.
        sequences_T: index of the token's response, see rlsys.algorithms.loss.LossInputs; required
            by the two rules for sequences.
        config: `importance`, `importance_cap` and `importance_floor`.
    """
    if config.importance == "none":
        return torch.ones_like(log_ratio_T), torch.zeros_like(trained_T)
    cap, floor = config.importance_cap, config.importance_floor or 0.0
    weights_T = torch.exp(log_ratio_T)
    if config.importance == "truncate":
        # Only the upper side is bounded: a very large weight would let one token dominate the
        # batch. A very small weight only removes a token that the learner would hardly sample.
        return weights_T.clamp(max=cap), weights_T > cap
    if config.importance == "icepop":
        outside_T = (weights_T < floor) | (weights_T > cap)
        # A mask and no clamp: where both differ this much, the direction of the gradient is noise.
        return torch.where(outside_T, 0.0, weights_T), outside_T
    assert sequences_T is not None
    sums_T, counts_T = sequence_sums(log_ratio_T, trained_T, sequences_T)
    if config.importance == "sequence_truncate":
        product_T = torch.exp(sums_T)
        return product_T.clamp(max=cap), product_T > cap
    mean_T = torch.exp(sums_T / counts_T.clamp(min=1.0))
    outside_T = (mean_T < floor) | (mean_T > cap)
    return torch.where(outside_T, 0.0, weights_T), outside_T


def sequence_sums(
    values_T: Tensor, trained_T: Tensor, sequences_T: Tensor
) -> tuple[Tensor, Tensor]:
    """Return, on each token, the sum of the values of its response and its trained tokens, [T].

    `values_T` must be 0 on untrained tokens.
    """
    places_T = sequences_T.long().clamp(min=0)
    # At most T responses; their exact number would have to be read back from the device.
    sums_T = torch.zeros_like(values_T).index_add(0, places_T, values_T)
    counts_T = torch.zeros_like(values_T).index_add(0, places_T, trained_T.to(values_T.dtype))
    return sums_T[places_T], counts_T[places_T]
