"""Preference learning that also raises the likelihood of the chosen response: DPO plus an NLL term.

Sources: DPO, arXiv 2305.18290, Eq. 7; the NLL term as in Iterative Reasoning Preference
Optimization, arXiv 2404.19733, Eq. 1. In the rows that rlsys makes, the chosen response is a
thought that is cut where it first states the right answer. The rejected response is the whole
thought.

Shapes: P pairs; T tokens of one micro-batch, rows joined; N of them are trained.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid


class RpoTerms(NamedTuple):
    """Loss and its parts for each pair, [P]; the gradient flows through all of them."""

    loss_P: Tensor
    """preference + alpha * nll, not averaged over pairs."""
    preference_P: Tensor
    """-log sigmoid(margin); log 2 if the policy prefers neither response."""
    nll_P: Tensor
    """Mean negative log-likelihood of the chosen tokens of the pair."""
    margin_P: Tensor
    """beta times the difference of two log-prob gains over the reference: chosen - rejected."""


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
        rejected_P: log-prob of the whole rejected response under the policy.
        reference_chosen_P: log-prob of the chosen response under the frozen starting policy.
        reference_rejected_P: log-prob of the rejected response under the frozen starting policy.
        chosen_tokens_P: number of tokens of the chosen response.
        beta: a larger value keeps the policy closer to the reference.
        alpha: weight of the NLL term; 0 is plain DPO.
    """
    # The reference is subtracted, so what counts is the change since the start of training. A
    # response that was likely from the beginning is not preferred for that reason.
    towards_chosen_P = chosen_P - reference_chosen_P
    towards_rejected_P = rejected_P - reference_rejected_P
    margin_P = beta * (towards_chosen_P - towards_rejected_P)
    preference_P = -logsigmoid(margin_P)
    # DPO alone may lower the likelihood of both responses as long as the margin increases. The
    # NLL term prevents that. Per token, so that long chosen responses do not dominate.
    nll_P = -chosen_P / chosen_tokens_P
    return RpoTerms(torch.add(preference_P, nll_P, alpha=alpha), preference_P, nll_P, margin_P)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairInputs:
    """Packed pairs, each a tree with a chosen and a rejected branch; arrays are [T].

    Values of tokens with weight 0 are ignored.
    """

    logprobs_T: Tensor
    """Log-probs under the weights being trained; the gradient flows through these."""
    reference_logprobs_T: Tensor
    """Log-probs under the frozen starting policy."""
    advantages_T: Tensor
    """Positive on tokens of the chosen response, negative on tokens of the rejected response."""
    weights_T: Tensor
    """`token_scale`; 0 on tokens that are not trained. The weight of a pair is the sum over its
    tokens: with `sequence_mean` this is 1 / pairs of the whole mini-batch."""
    pairs_T: Tensor
    """Index of the token's pair within the micro-batch, as int64 or int32."""
    num_pairs: int


def pair_loss(inputs: PairInputs, *, beta: float, alpha: float) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the weighted sum of `rpo_loss` over pairs, a scalar, and its metric sums.

    Both add up over micro-batches, accumulation steps and ranks, see rlsys.algorithms.loss.
    """
    # Prompt and padding have weight 0. Drop them first: their log-probs may be NaN or infinite.
    trained_N = inputs.weights_T.nonzero().squeeze(-1)
    pairs_N, chosen_N = inputs.pairs_T[trained_N].long(), inputs.advantages_T[trained_N] > 0

    def total(values_N: Tensor, where_N: Tensor) -> Tensor:
        """Sum per pair. In float64, because the margin is a small difference of large sums."""
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
