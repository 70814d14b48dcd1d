"""The loss of REA-RL is the ordinary policy loss; here are its published numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import pytest
import torch
from numpy.testing import assert_allclose
from torch import Tensor

from rlsys.algorithms.loss import LossInputs, policy_loss, summarise, token_scale
from rlsys.config import LossConfig

CONFIG = LossConfig(
    clip_low=0.2, clip_high=0.2, aggregation="token_mean", kl_coefficient=0.04, importance_cap=2.0
)
LOGPROBS = [[-1, -0.5, -2, -0.1], [-0.3, -0.7, -1.5, -9]]
OLD = [[-1.2, -0.5, -1.6, -0.1], [-0.9, -0.7, -1.5, -9]]
REFERENCE = [[-1.1, -0.4, -2, -0.2], [-0.3, -0.9, -1.5, -9]]
MASK = [[1, 1, 1, 1], [1, 1, 1, 0]]
ADVANTAGES = [[0.8] * 4, [-0.6] * 4]
PER_TOKEN = [-0.959807, -0.799793, -0.536256, -0.799807, 1.093271, 0.600749, 0.6, 0.6]


def flat(values: Sequence[Sequence[float]]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64).flatten()


def loss_of(weights: Tensor, old: list[list[float]] = OLD) -> tuple[Tensor, dict[str, Tensor]]:
    """The tokens of both rows, joined; the engine agrees with the old policy."""
    inputs = LossInputs(
        logprobs_T=flat(LOGPROBS),
        old_logprobs_T=flat(old),
        sampled_logprobs_T=flat(old),
        advantages_T=flat(ADVANTAGES),
        weights_T=weights,
        reference_logprobs_T=flat(REFERENCE),
    )
    return policy_loss(inputs, CONFIG)


def weights_by(aggregation: Literal["token_mean", "sequence_mean"]) -> Tensor:
    scales = [
        token_scale(aggregation, episodes=2, constant=4, trained_tokens=7, episode_tokens=sum(mask))
        for mask in MASK
    ]
    return flat(MASK) * torch.tensor(scales, dtype=torch.float64).repeat_interleave(4)


def test_ratios_and_every_token() -> None:
    ratios = torch.exp(flat(LOGPROBS) - flat(OLD))
    assert_allclose(ratios, [1.221403, 1, 0.67032, 1, 1.822119, 1, 1, 1], atol=1e-6)
    per_token = [loss_of(one_hot)[0] for one_hot in torch.eye(8, dtype=torch.float64)]
    assert_allclose(per_token, PER_TOKEN, atol=1e-6)


def test_mean_over_tokens_and_over_rows() -> None:
    loss, _ = loss_of(weights_by("token_mean"))
    assert loss.item() == pytest.approx(-0.11452, abs=1e-6)
    loss, _ = loss_of(weights_by("sequence_mean"))
    assert loss.item() == pytest.approx(-0.004621, abs=1e-6)
    loss, _ = loss_of(weights_by("token_mean"), old=LOGPROBS)
    assert loss.item() == pytest.approx(-0.199808, abs=1e-6)


def test_divergence_and_what_is_truly_clipped() -> None:
    _, metric_sums = loss_of(weights_by("token_mean"))
    metrics = summarise(metric_sums)
    assert metrics["reference_kl_mean"] == pytest.approx(0.004797, abs=1e-6)
    assert metrics["clip_high_share"] == pytest.approx(1 / 7)
    assert metrics["clip_low_share"] == 0
    per_token = [
        loss_of(one_hot)[1]["reference_kl_sum"] for one_hot in torch.eye(8, dtype=torch.float64)
    ]
    expected = [0.004837, 0.005171, 0, 0.004837, 0, 0.018731, 0, 0]
    assert_allclose(per_token, expected, atol=1e-6)
