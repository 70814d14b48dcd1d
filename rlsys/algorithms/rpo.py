"""Preference learning that keeps the likelihood of the chosen: DPO plus a supervised term.

Sources: DPO, arXiv 2305.18290, Eq. 7; the added term as in Iterative Reasoning Preference
Optimization, arXiv 2404.19733, Eq. 1. Here chosen is a thought cut where it first knew the answer,
rejected the same thought at full length.

Shapes: P pairs; T tokens of one micro-batch, rows joined.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid


class RpoTerms(NamedTuple):
    """Per pair [P]; the gradient flows through all of them."""

    loss_P: Tensor
    """preference + alpha * nll, not averaged over pairs."""
    preference_P: Tensor
    """-log sigmoid(margin), log 2 for an undecided policy."""
    nll_P: Tensor
    """Mean negative log-likelihood of the chosen tokens of the pair."""
    margin_P: Tensor
    """beta times how much more the policy has moved towards chosen than towards rejected."""


def rpo_loss(
    chosen_P: Tensor,
    rejected_P: Tensor,
    reference_chosen_P: Tensor,
    reference_rejected_P: Tensor,
    chosen_tokens_P: Tensor,
    *,
    beta: float = 0.1,
    alpha: float = 1.0,
) -> RpoTerms:
    """Return the loss of every pair and its parts.

    Args:
        chosen_P: log-prob of the whole chosen response (EOS included) under the policy.
        rejected_P: the same of the rejected response.
        reference_chosen_P: log-prob of the chosen response under the frozen starting policy.
        reference_rejected_P: the same of the rejected response.
        chosen_tokens_P: tokens of the chosen response.
        beta: how strongly the policy is held to the reference.
        alpha: weight of the likelihood of the chosen; 0 is plain DPO.
    """
    towards_chosen_P = chosen_P - reference_chosen_P
    towards_rejected_P = rejected_P - reference_rejected_P
    margin_P = beta * (towards_chosen_P - towards_rejected_P)
    preference_P = -logsigmoid(margin_P)
    nll_P = -chosen_P / chosen_tokens_P
    return RpoTerms(torch.add(preference_P, nll_P, alpha=alpha), preference_P, nll_P, margin_P)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairInputs:
    """Packed pairs, each a tree with a chosen and a rejected branch; arrays are [T].

    Where the weight is 0 the rest may be anything.
    """

    logprobs_T: Tensor
    """Log-probs under the weights being trained; the gradient flows through these."""
    reference_logprobs_T: Tensor
    """Log-probs under the frozen starting policy."""
    advantages_T: Tensor
    """Positive on tokens of the chosen response, negative on those of the rejected one."""
    weights_T: Tensor
    """`token_scale`; 0 on tokens that are not trained. A pair weighs what its tokens weigh
    together: with `sequence_mean` that is 1 / pairs of the whole mini-batch."""
    pairs_T: Tensor
    """Number of the token's pair within the micro-batch, as int64 or int32."""
    num_pairs: int


def pair_loss(inputs: PairInputs, *, beta: float, alpha: float) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the weighted sum of `rpo_loss` over pairs, a scalar, and its metric sums.

    Both add up over micro-batches, accumulation steps and ranks, see rlsys.algorithms.loss.
    """
    trained_N = inputs.weights_T.nonzero().squeeze(-1)
    pairs_N, chosen_N = inputs.pairs_T[trained_N].long(), inputs.advantages_T[trained_N] > 0

    def total(values_N: Tensor, where_N: Tensor) -> Tensor:
        """Sum per pair, in float64: the margin is a small difference of long sums."""
        zeros_P = torch.zeros(inputs.num_pairs, dtype=torch.float64, device=values_N.device)
        return zeros_P.index_add(0, pairs_N[where_N], values_N[where_N].double())

    logprobs_N, weights_N = inputs.logprobs_T[trained_N], inputs.weights_T[trained_N]
    reference_N = inputs.reference_logprobs_T[trained_N]
    terms = rpo_loss(
        total(logprobs_N, chosen_N),
        total(logprobs_N, ~chosen_N),
        total(reference_N, chosen_N),
        total(reference_N, ~chosen_N),
        total(torch.ones_like(weights_N), chosen_N),
        beta=beta,
        alpha=alpha,
    )
    weights_P = total(weights_N, chosen_N) + total(weights_N, ~chosen_N)
    return (weights_P * terms.loss_P).sum(), {
        "tokens": torch.tensor(len(trained_N), dtype=torch.float64, device=trained_N.device),
        "pairs": torch.tensor(inputs.num_pairs, dtype=torch.float64, device=trained_N.device),
        "preference_sum": terms.preference_P.detach().sum(),
        "nll_sum": terms.nll_P.detach().sum(),
        "margin_sum": terms.margin_P.detach().sum(),
        "preferred_count": (terms.margin_P > 0).sum(dtype=torch.float64),
    }
