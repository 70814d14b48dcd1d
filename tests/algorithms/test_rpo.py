from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rlsys.algorithms.loss import summarise
from rlsys.algorithms.rpo import PairInputs, pair_loss, rpo_loss

LOGPROBS = st.lists(st.floats(-300, -0.1), min_size=4, max_size=4)


def double(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_hand_worked_pair() -> None:
    terms = rpo_loss(double(-42), double(-160), double(-45), double(-158), double(60))
    assert terms.margin_P.item() == pytest.approx(0.5)
    assert terms.preference_P.item() == pytest.approx(0.474077, abs=1e-6)
    assert terms.nll_P.item() == pytest.approx(0.7)
    assert terms.loss_P.item() == pytest.approx(1.174077, abs=1e-6)


def test_a_policy_that_is_the_reference_is_undecided() -> None:
    same = double(-42, -7)
    terms = rpo_loss(same, same - 3, same, same - 3, double(6, 7), alpha=0.0)
    assert terms.loss_P.tolist() == pytest.approx([math.log(2)] * 2)


@given(LOGPROBS, st.integers(1, 200), st.floats(0.01, 2), st.floats(0, 3))
def test_terms_and_gradients_follow_the_formula(
    logprobs: list[float], tokens: int, beta: float, alpha: float
) -> None:
    chosen, rejected = (double(value).requires_grad_() for value in logprobs[:2])
    reference_chosen, reference_rejected = (double(value) for value in logprobs[2:])
    terms = rpo_loss(
        chosen,
        rejected,
        reference_chosen,
        reference_rejected,
        double(tokens),
        beta=beta,
        alpha=alpha,
    )
    a, b, c, d = logprobs
    margin = beta * ((a - c) - (b - d))
    assert terms.loss_P.item() == pytest.approx(
        math.log1p(math.exp(-abs(margin))) + max(-margin, 0) - alpha * a / tokens
    )
    terms.loss_P.sum().backward()
    pull = beta * torch.sigmoid(double(-margin)).item()
    assert chosen.grad.item() == pytest.approx(-pull - alpha / tokens)
    assert rejected.grad.item() == pytest.approx(pull)


def test_packed_pairs_equal_a_loop_over_pairs() -> None:
    """Tokens of three pairs mixed up; on untrained ones stands whatever may stand there."""
    generator = torch.Generator().manual_seed(0)
    pairs_T = torch.tensor([0, 0, 1, 2, 1, 0, 2, 2, 1, -1, 0, 2])
    sign_T = torch.tensor([1, -1, 1, 1, -1, 1, -1, 1, 1, 1, -1, -1.0])
    trained_T = torch.tensor([1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 1, 0], dtype=torch.bool)
    logprobs_T = -torch.rand(12, generator=generator, dtype=torch.float64)
    reference_T = -torch.rand(12, generator=generator, dtype=torch.float64)
    logprobs_T[~trained_T] = torch.nan
    logprobs_T.requires_grad_()

    expected = []
    for pair in range(3):
        here_T = trained_T & (pairs_T == pair)
        good_T, bad_T = here_T & (sign_T > 0), here_T & (sign_T < 0)
        gain = (logprobs_T[good_T] - reference_T[good_T]).sum()
        gain = 0.3 * (gain - (logprobs_T[bad_T] - reference_T[bad_T]).sum())
        nll = -logprobs_T[good_T].mean()
        expected.append((torch.log1p(torch.exp(-gain)) + 0.5 * nll, nll, gain))
    loss, nll, margin = (torch.stack(column) for column in zip(*expected, strict=True))
    (gradient_T,) = torch.autograd.grad(loss.mean(), logprobs_T)

    tokens_P = double(4, 3, 3)  # trained tokens of every pair: sequence_mean
    inputs = PairInputs(
        logprobs_T=logprobs_T,
        reference_logprobs_T=reference_T,
        advantages_T=sign_T,
        weights_T=torch.where(trained_T, 1 / (3 * tokens_P[pairs_T.clamp(min=0)]), 0.0),
        pairs_T=pairs_T,
        num_pairs=3,
    )
    found, sums = pair_loss(inputs, beta=0.3, alpha=0.5)
    torch.testing.assert_close(found, loss.mean(), atol=1e-7, rtol=0)
    torch.testing.assert_close(
        torch.autograd.grad(found, logprobs_T)[0], gradient_T.nan_to_num(0.0), atol=1e-7, rtol=0
    )
    means = summarise(sums)
    assert means["tokens"] == 10
    assert means["pairs"] == 3
    assert means["nll_mean"] == pytest.approx(nll.mean().item())
    assert means["margin_mean"] == pytest.approx(margin.mean().item())
    assert means["preferred_share"] == pytest.approx((margin > 0).double().mean().item())


def test_a_micro_batch_without_pairs_adds_nothing() -> None:
    logprobs_T = torch.zeros(4, requires_grad=True)
    zeros_T = torch.zeros(4)
    inputs = PairInputs(
        logprobs_T=logprobs_T,
        reference_logprobs_T=zeros_T,
        advantages_T=zeros_T,
        weights_T=zeros_T,
        pairs_T=torch.full((4,), -1),
        num_pairs=0,
    )
    loss, sums = pair_loss(inputs, beta=0.1, alpha=1.0)
    loss.backward()
    assert loss == 0
    assert logprobs_T.grad is not None and not logprobs_T.grad.any()
    assert sums["pairs"] == sums["margin_sum"] == 0
