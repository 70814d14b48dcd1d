"""Preference learning that keeps the likelihood of the chosen: DPO plus a supervised term.

Sources: DPO, arXiv 2305.18290, Eq. 7; the added term as in Iterative Reasoning Preference
Optimization, arXiv 2404.19733, Eq. 1. Here chosen is a thought cut where it first knew the answer,
rejected the same thought at full length.

Shape: P pairs.
"""

from __future__ import annotations

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
