"""Estimates of the KL divergence to the starting policy, and the divergence as part of the reward.

Source: Schulman, "Approximating KL divergence", 2020.

Shapes: T tokens; R rows of T tokens, in the layout of learner.packing.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Estimator = Literal["k1", "k2", "k3"]


def kl_estimate(logprobs_T: Tensor, other_T: Tensor, estimator: Estimator) -> Tensor:
    """Estimate KL(policy || other) on tokens that the policy sampled, [T].

    With d = log-prob - other: k1 is d, k2 is d^2 / 2, k3 is exp(-d) - 1 + d. k1 and k3 are unbiased
    as values; k2 has the unbiased gradient where the tokens come from the policy itself.
    """
    match estimator:
        case "k1":
            return logprobs_T - other_T
        case "k2":
            return (logprobs_T - other_T).square() / 2.0
        case "k3":
            return k3(logprobs_T, other_T)


def k3(logprobs_T: Tensor, other_T: Tensor) -> Tensor:
    """Estimate KL(policy || other) on tokens that the policy sampled: never negative, low variance.

    With r = other / policy the estimate is r - 1 - log r. The plain estimate is -log r; the added
    term r - 1 has mean 0 and reduces the variance.
    """
    # Two nearly equal policies give a very small x. expm1(x) keeps the digits that exp(x) - 1 would
    # lose.
    log_ratio_T = other_T - logprobs_T
    return torch.expm1(log_ratio_T) - log_ratio_T


def kl_to_go(
    logprobs_RT: Tensor,
    other_RT: Tensor,
    trained_RT: Tensor,
    exits_RT: Tensor,
    estimator: Estimator,
) -> Tensor:
    """Return what every token costs if its reward includes the divergence, [R, T].

    A token pays for its own estimate and for those of all tokens that follow it: the rest of its
    segment and the branches below. In a plain sequence that is the usual return, without discount.
    The estimate of a token before it does not depend on it. k1 has the unbiased gradient.

    Args:
        logprobs_RT: log-probs under the policy at the start of the training step.
        other_RT: log-probs under the starting policy of the run.
        trained_RT: bool; untrained tokens cost nothing.
        exits_RT: end (exclusive) of the range of the row that holds a token and all below it.
        estimator: see `kl_estimate`.
    """
    costs_RT = torch.where(trained_RT, kl_estimate(logprobs_RT, other_RT, estimator), 0.0)
    # The range of a token is contiguous, so its sum is the difference of two cumulative sums. In
    # float64, because both are sums over the whole row.
    totals_RT = torch.nn.functional.pad(costs_RT.double().cumsum(dim=1), (1, 0))
    to_go_RT = totals_RT.gather(1, exits_RT.long()) - totals_RT[:, :-1]
    return to_go_RT.to(logprobs_RT.dtype)
