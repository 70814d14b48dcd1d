"""The teacher's advantage: by hand, against a loop, and as a gradient of the divergence."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlsys.algorithms.distill import with_teacher


def test_by_hand() -> None:
    # The policy gave the tokens 1/2, 1/4 and 1/2, the teacher 1/4, 1/2 and 1/2.
    policy = torch.tensor([-0.6931, -1.3863, -0.6931])
    teacher = torch.tensor([-1.3863, -0.6931, -0.6931])
    alone = with_teacher(torch.zeros(3), policy, teacher, 1.0)
    assert alone.tolist() == pytest.approx([-0.6932, 0.6932, 0.0], abs=1e-6)
    beside = with_teacher(torch.tensor([1.0, -1.0, 0.5]), policy, teacher, 0.5)
    assert beside.tolist() == pytest.approx([0.6534, -0.6534, 0.5], abs=1e-6)


def test_equals_a_loop_over_tokens() -> None:
    rng = np.random.default_rng(0)
    advantages_RT, policy_RT, teacher_RT = rng.normal(size=(3, 2, 7))
    slow = [
        [advantages_RT[r, t] + 0.3 * (teacher_RT[r, t] - policy_RT[r, t]) for t in range(7)]
        for r in range(2)
    ]
    found = with_teacher(
        torch.tensor(advantages_RT), torch.tensor(policy_RT), torch.tensor(teacher_RT), 0.3
    )
    np.testing.assert_allclose(found.numpy(), slow, rtol=1e-12)


def test_the_expected_gradient_is_that_of_the_reverse_divergence() -> None:
    logits_V = torch.tensor([0.3, -1.0, 0.5, 0.0], dtype=torch.float64, requires_grad=True)
    teacher_V = torch.log_softmax(torch.tensor([1.0, 0.2, -0.5, 0.1], dtype=torch.float64), 0)
    policy_V = torch.log_softmax(logits_V, 0)
    divergence = (policy_V.exp() * (policy_V - teacher_V)).sum()
    (wanted_V,) = torch.autograd.grad(divergence, logits_V, retain_graph=True)
    # Every token of the vocabulary once, weighted by the chance that the policy samples it.
    advantages_V = with_teacher(torch.zeros(4).double(), policy_V, teacher_V, 1.0)
    assert not advantages_V.requires_grad
    loss = -(policy_V.detach().exp() * advantages_V * policy_V).sum()
    (found_V,) = torch.autograd.grad(loss, logits_V)
    torch.testing.assert_close(found_V, wanted_V)
