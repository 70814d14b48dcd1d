"""Surrogates and KL estimators beside the defaults, against published and hand-worked numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rlsys.algorithms.loss import (
    LossInputs,
    kl_estimate,
    merge_metrics,
    policy_loss,
    sequence_ratio,
    summarise,
)
from rlsys.config import LossConfig

PLAIN = LossConfig(importance_cap=2.0)


def double(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def inputs_of(
    logprobs: list[float],
    old: list[float],
    advantages: list[float],
    sequences: list[int] | None = None,
    weights: list[float] | None = None,
) -> LossInputs:
    old_T = double(old)
    return LossInputs(
        logprobs_T=double(logprobs).requires_grad_(),
        old_logprobs_T=old_T,
        sampled_logprobs_T=old_T,
        advantages_T=double(advantages),
        weights_T=torch.ones_like(old_T) if weights is None else double(weights),
        sequences_T=None if sequences is None else torch.tensor(sequences),
    )


# Ratios 0.5, 1 and 10: the published test table of NeMo-RL and SkyRL.
TABLE = ([-1.69315, -1.0, -0.69741], [-1.0, -1.0, -3.0], [1.0, -1.0, -4.0])


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (PLAIN, -0.5 + 1.0 + 40.0),
        (LossConfig(dual_clip=3.0), 12.5),
        (LossConfig(surrogate="cispo"), -2.9930),
    ],
)
def test_published_table(config: LossConfig, expected: float) -> None:
    loss, _ = policy_loss(inputs_of(*TABLE), config)
    assert loss.item() == pytest.approx(expected, abs=1e-3)


def test_published_case_of_gspo() -> None:
    # Three responses of 5, 2 and 4 tokens. By hand: the means of new - old are 0.14, 1.3 and 0.625,
    # so the ratios are 1.150274, 3.669297 and 1.868246, of which the last two are clipped at 1.2.
    inputs = inputs_of(
        [0.2, -2.5, -0.3, 0.1, -1.8, 0.8, -0.2, -0.5, 0.3, -1.7, 0.4],
        [-1.0] * 11,
        [1.5, 2.0, 1.0, 0.8, 0.5, 3.0, 1.5, 0.5, 0.8, 1.2, 2.5],
        [0] * 5 + [1] * 2 + [2] * 4,
    )
    loss, metrics = policy_loss(inputs, LossConfig(surrogate="gspo"))
    assert loss.item() == pytest.approx(-(1.150274 * 5.8 + 1.2 * 4.5 + 1.2 * 5.0), abs=1e-5)
    assert summarise(metrics)["clip_high_share"] == pytest.approx(6 / 11)
    loss.backward()
    expected = [-1.150274 * a for a in (1.5, 2.0, 1.0, 0.8, 0.5)] + [0.0] * 6
    assert inputs.logprobs_T.grad.tolist() == pytest.approx(expected, abs=1e-5)


def test_gspo_has_the_gradient_of_the_ratio_of_the_response() -> None:
    """With one advantage, its tokens together have that gradient, times their number."""
    logprobs = double([-0.9, -1.1, -1.05]).requires_grad_()
    old = double([-1.0, -1.0, -1.0])
    ratio_T = sequence_ratio(logprobs, old, torch.ones(3, dtype=torch.bool), torch.zeros(3))
    (tokens,) = torch.autograd.grad(ratio_T.sum(), logprobs)
    whole = 3 * torch.exp((logprobs - old).mean())
    assert ratio_T.sum().item() == pytest.approx(whole.item())
    torch.testing.assert_close(tokens, torch.autograd.grad(whole, logprobs)[0])


def test_cispo_keeps_the_gradient_of_clipped_tokens() -> None:
    inputs = inputs_of(*TABLE)
    loss, metrics = policy_loss(inputs, LossConfig(surrogate="cispo"))
    loss.backward()
    assert inputs.logprobs_T.grad.tolist() == pytest.approx([-0.8, 1.0, 4.8], abs=1e-4)
    summary = summarise(metrics)
    assert summary["clip_low_share"] == summary["clip_high_share"] == pytest.approx(1 / 3)
    # Without a lower bound, as published, the first token weighs its ratio.
    unbounded, _ = policy_loss(inputs_of(*TABLE), LossConfig(surrogate="cispo", clip_low=1.0))
    assert unbounded.item() == pytest.approx(loss.item() - 0.3 * 1.69315, abs=1e-4)


def test_dual_clip_stops_bad_tokens_that_became_likely_and_nothing_else() -> None:
    inputs = inputs_of(*TABLE)
    policy_loss(inputs, LossConfig(dual_clip=3.0))[0].backward()
    assert inputs.logprobs_T.grad.tolist() == pytest.approx([-0.5, 1.0, 0.0], abs=1e-4)
    good = inputs_of([-0.69741], [-3.0], [4.0])
    assert policy_loss(good, LossConfig(dual_clip=3.0))[0].item() == pytest.approx(-4.8)


@pytest.mark.parametrize(
    ("estimator", "value", "slope"),
    [
        ("k1", 0.5, 1.0),
        ("k2", 0.125, 0.5),
        ("k3", 0.10653066, 0.39346934),
    ],
)
def test_kl_estimators(estimator: Literal["k1", "k2", "k3"], value: float, slope: float) -> None:
    logprobs = double([-1.0]).requires_grad_()
    estimate = kl_estimate(logprobs, double([-1.5]), estimator)
    estimate.sum().backward()
    assert estimate.item() == pytest.approx(value)
    assert logprobs.grad.item() == pytest.approx(slope)
    inputs = replace(inputs_of([-1.0], [-1.0], [0.0]), reference_logprobs_T=double([-1.5]))
    config = LossConfig(kl_coefficient=0.1, kl_estimator=estimator)
    loss, metrics = policy_loss(inputs, config)
    assert loss.item() == pytest.approx(0.1 * value)
    assert summarise(metrics)["reference_kl_mean"] == pytest.approx(value)


@pytest.mark.parametrize("name", ["ppo", "gspo", "cispo"])
def test_at_the_old_policy_all_surrogates_have_one_gradient(name: str) -> None:
    inputs = inputs_of([-1.0, -2.0, -0.5], [-1.0, -2.0, -0.5], [1.0, -2.0, 3.0], [0, 0, 1])
    policy_loss(inputs, LossConfig(surrogate=name))[0].backward()
    assert inputs.logprobs_T.grad.tolist() == pytest.approx([-1.0, 2.0, -3.0])


@given(st.integers(0, 10_000), st.integers(1, 6), st.sampled_from(["gspo", "cispo"]))
@settings(max_examples=40)
def test_whole_responses_may_be_split_over_micro_batches(seed: int, count: int, name: str) -> None:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 6, (count,), generator=generator)
    sequences_T = torch.repeat_interleave(torch.arange(count), lengths)

    def normal() -> Tensor:
        return torch.randn(len(sequences_T), generator=generator, dtype=torch.float64)

    old_T = -normal().abs()
    trained_T = torch.rand(len(sequences_T), generator=generator) > 0.3
    whole = LossInputs(
        logprobs_T=torch.where(trained_T, old_T + 0.3 * normal(), torch.nan),
        old_logprobs_T=old_T,
        sampled_logprobs_T=old_T + 0.1 * normal(),
        advantages_T=normal(),
        weights_T=trained_T * normal().abs(),
        sequences_T=sequences_T,
    )
    config = LossConfig(surrogate=name)
    loss, metrics = policy_loss(whole, config)
    total = 0.0
    sums: dict[str, Tensor] = {}
    for number in range(count):
        at = sequences_T == number
        part = LossInputs(
            logprobs_T=whole.logprobs_T[at],
            old_logprobs_T=whole.old_logprobs_T[at],
            sampled_logprobs_T=whole.sampled_logprobs_T[at],
            advantages_T=whole.advantages_T[at],
            weights_T=whole.weights_T[at],
            sequences_T=torch.zeros(int(at.sum()), dtype=torch.int64),
        )
        part_loss, part_metrics = policy_loss(part, config)
        total += part_loss.item()
        sums = merge_metrics(sums, part_metrics) if sums else part_metrics
    assert total == pytest.approx(loss.item(), abs=1e-9)
    assert summarise(sums) == pytest.approx(summarise(metrics))


def test_padding_belongs_to_no_response() -> None:
    inputs = inputs_of([-0.8, -0.9, 0.0], [-1.0] * 3, [1.0] * 3, [0, 0, -1], [1.0, 1.0, 0.0])
    alone = inputs_of([-0.8, -0.9], [-1.0] * 2, [1.0] * 2, [0, 0])
    config = LossConfig(surrogate="gspo")
    assert policy_loss(inputs, config)[0].item() == policy_loss(alone, config)[0].item()
