from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlsys.algorithms.rpo import rpo_loss

LOGPROBS = st.lists(st.floats(-300, -0.1), min_size=4, max_size=4)


def double(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_hand_worked_pair():
    terms = rpo_loss(double(-42), double(-160), double(-45), double(-158), double(60))
    assert terms.margin_P.item() == pytest.approx(0.5)
    assert terms.preference_P.item() == pytest.approx(0.474077, abs=1e-6)
    assert terms.nll_P.item() == pytest.approx(0.7)
    assert terms.loss_P.item() == pytest.approx(1.174077, abs=1e-6)


def test_a_policy_that_is_the_reference_is_undecided():
    same = double(-42, -7)
    terms = rpo_loss(same, same - 3, same, same - 3, double(6, 7), alpha=0.0)
    assert terms.loss_P.tolist() == pytest.approx([math.log(2)] * 2)


@given(LOGPROBS, st.integers(1, 200), st.floats(0.01, 2), st.floats(0, 3))
def test_terms_and_gradients_follow_the_formula(logprobs, tokens, beta, alpha):
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
