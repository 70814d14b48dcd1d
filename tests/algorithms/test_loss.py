from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rlsys.algorithms.loss import (
    LossInputs,
    merge_metrics,
    nll_loss,
    policy_loss,
    summarise,
    token_scale,
)
from rlsys.config import LossConfig

EVERYTHING = LossConfig(
    clip_low=0.2, clip_high=0.28, kl_coefficient=0.1, entropy_coefficient=0.01, importance_cap=1.5
)
GARBAGE = (float("nan"), float("inf"), float("-inf"), 1e30)


def double(values: float | list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def inputs_of_ratios(
    ratios_T: list[float],
    advantages_T: list[float],
    weights_T: list[float],
    importance_T: list[float] | None = None,
) -> LossInputs:
    """Tokens with given ratios between new and old, and between old and engine (1 if None)."""
    old_T = torch.full((len(ratios_T),), -1.0, dtype=torch.float64)
    sampled_T = old_T if importance_T is None else old_T - double(importance_T).log()
    return LossInputs(
        logprobs_T=(old_T + double(ratios_T).log()).requires_grad_(),
        old_logprobs_T=old_T,
        sampled_logprobs_T=sampled_T,
        advantages_T=double(advantages_T),
        weights_T=double(weights_T),
    )


def random_inputs(seed: int, length: int, *, untrained: float = 0.3) -> LossInputs:
    """Tokens whose ratios fall on both sides of both clips, some of them with weight 0."""
    generator = torch.Generator().manual_seed(seed)

    def normal(spread: float) -> Tensor:
        return spread * torch.randn(length, generator=generator, dtype=torch.float64)

    logprobs_T = -normal(1.0).abs()
    old_T = logprobs_T + normal(0.3)
    trained_T = torch.rand(length, generator=generator) >= untrained
    return LossInputs(
        logprobs_T=logprobs_T,
        old_logprobs_T=old_T,
        sampled_logprobs_T=old_T + normal(0.5),
        advantages_T=normal(1.0),
        weights_T=trained_T * normal(1.0).abs(),
        reference_logprobs_T=logprobs_T + normal(0.3),
        entropy_T=normal(1.0).abs(),
    )


def take(inputs: LossInputs, index: Tensor) -> LossInputs:
    given = {f.name: getattr(inputs, f.name) for f in fields(LossInputs)}
    return LossInputs(**{k: None if v is None else v[index] for k, v in given.items()})


def gradient(loss: Tensor, inputs: LossInputs) -> tuple[Tensor, Tensor]:
    assert inputs.entropy_T is not None
    logprobs_T, entropy_T = torch.autograd.grad(loss, (inputs.logprobs_T, inputs.entropy_T))
    return logprobs_T, entropy_T


def require_grad(inputs: LossInputs) -> LossInputs:
    assert inputs.entropy_T is not None
    return replace(
        inputs,
        logprobs_T=inputs.logprobs_T.clone().requires_grad_(),
        entropy_T=inputs.entropy_T.clone().requires_grad_(),
    )


def test_constant_normaliser_with_hand_worked_numbers() -> None:
    scale = token_scale("constant", episodes=2, constant=10, trained_tokens=6, episode_tokens=3)
    mask_T = [1, 1, 1, 0, 1, 1, 0, 1]
    inputs = inputs_of_ratios(
        [1.1, 1.5, 0.5, 1, 1.5, 0.5, 1, 1],
        [0.2, 0.2, -0.1, 0, -0.3, -0.3, 0.4, 0.4],
        [scale * mask for mask in mask_T],
    )
    loss, metrics = policy_loss(inputs, LossConfig())
    assert loss.item() == pytest.approx(-0.0045, abs=1e-12)

    terms_T = [-0.22, -0.24, 0.08, 0, 0.45, 0.24, 0, -0.40]
    for index, (term, mask) in enumerate(zip(terms_T, mask_T, strict=True)):
        alone = replace(inputs, weights_T=torch.eye(8, dtype=torch.float64)[index] * mask)
        assert policy_loss(alone, LossConfig())[0].item() == pytest.approx(term, abs=1e-12)

    assert summarise(metrics) == pytest.approx(
        {
            "tokens": 6,
            "ratio_mean": 6.1 / 6,
            "ratio_max": 1.5,
            "clip_low_share": 2 / 6,
            "clip_high_share": 1 / 6,
            "kl_k1_mean": -double([1.1, 1.5, 0.5, 1.5, 0.5, 1.0]).log().mean().item(),
            "kl_k3_mean": (0.1 / 6 - double([1.1, 1.5, 0.5, 1.5, 0.5, 1.0]).log().mean().item()),
            "engine_gap_mean": 0,
            "engine_gap_max": 0,
            "importance_mean": 1,
            "importance_truncated_share": 0,
        },
        abs=1e-12,
    )


def test_each_side_has_its_own_clip() -> None:
    cases: list[tuple[float, float, float]] = [
        # d loss / d log-prob is -advantage * ratio, and 0 where the clip binds.
        (1.0, 0.5, -0.5),
        (1.29, 0.5, 0.0),
        (1.27, 0.5, -0.635),
        (1.29, -0.5, 0.645),
        (0.79, -0.5, 0.0),
        (0.81, -0.5, 0.405),
        (0.79, 0.5, -0.395),
    ]
    for ratio, advantage, slope in cases:
        inputs = inputs_of_ratios([ratio], [advantage], [1.0])
        loss, _ = policy_loss(inputs, LossConfig(clip_low=0.2, clip_high=0.28))
        loss.backward()
        assert inputs.logprobs_T.grad.item() == pytest.approx(slope, abs=1e-12), (
            ratio,
            advantage,
            slope,
        )


def test_importance_weight_is_truncated_and_constant() -> None:
    inputs = inputs_of_ratios([1, 1, 1], [1, 1, 1], [1, 1, 1], importance_T=[0.5, 1.5, 40.0])
    inputs.old_logprobs_T.requires_grad_()
    loss, metrics = policy_loss(inputs, LossConfig(importance_cap=2.0))
    assert loss.item() == pytest.approx(-(0.5 + 1.5 + 2.0))
    slopes_T, old_slopes_T = torch.autograd.grad(loss, (inputs.logprobs_T, inputs.old_logprobs_T))
    assert slopes_T.tolist() == pytest.approx([-0.5, -1.5, -2.0])
    assert old_slopes_T.tolist() == pytest.approx([0.5, 1.5, 2.0])  # by the ratio only
    summary = summarise(metrics)
    assert summary["importance_mean"] == pytest.approx(4.0 / 3)
    assert summary["importance_truncated_share"] == pytest.approx(1 / 3)
    assert summary["engine_gap_max"] == pytest.approx(double(40.0).log().item())


def test_kl_and_entropy_terms() -> None:
    inputs = replace(
        inputs_of_ratios([1, 1], [0, 0], [1.0, 2.0]),
        reference_logprobs_T=double([-1.0, -1.5]),
        entropy_T=double([0.7, 0.3]),
    )
    loss, metrics = policy_loss(inputs, LossConfig(kl_coefficient=0.1, entropy_coefficient=0.01))
    k3 = double(-0.5).exp().item() - 1 + 0.5
    assert loss.item() == pytest.approx(2 * 0.1 * k3 - 0.01 * (0.7 + 2 * 0.3))
    assert summarise(metrics)["reference_kl_mean"] == pytest.approx(k3 / 2)
    assert summarise(metrics)["entropy_mean"] == pytest.approx(0.5)


@given(st.integers(0, 10_000), st.integers(1, 40), st.integers(1, 6))
@settings(max_examples=50)
def test_every_split_has_the_same_loss_gradient_and_metrics(
    seed: int, length: int, parts: int
) -> None:
    whole = require_grad(random_inputs(seed, length))
    loss, metrics = policy_loss(whole, EVERYTHING)
    expected = gradient(loss, whole)

    generator = torch.Generator().manual_seed(seed + 1)
    owner_T = torch.randint(parts, (length,), generator=generator)
    split_loss = torch.zeros((), dtype=torch.float64)
    split_metrics: dict[str, Tensor] = {}
    for part in range(parts):
        index = (owner_T == part).nonzero().squeeze(1)
        if len(index):
            part_loss, part_metrics = policy_loss(take(whole, index), EVERYTHING)
            split_loss = split_loss + part_loss
            split_metrics = (
                merge_metrics(split_metrics, part_metrics) if split_metrics else part_metrics
            )
    torch.testing.assert_close(split_loss, loss)
    torch.testing.assert_close(gradient(split_loss, whole), expected)
    assert summarise(split_metrics) == pytest.approx(summarise(metrics))


@pytest.mark.parametrize("seed", range(5))
def test_gradient_equals_finite_differences(seed: int) -> None:
    inputs = random_inputs(seed, 40)

    def loss_of(logprobs_T: Tensor, entropy_T: Tensor) -> Tensor:
        changed = replace(inputs, logprobs_T=logprobs_T, entropy_T=entropy_T)
        return policy_loss(changed, EVERYTHING)[0]

    step, leaves = 1e-6, require_grad(inputs)
    slopes = gradient(loss_of(leaves.logprobs_T, leaves.entropy_T), leaves)
    for index in range(40):
        nudge_T = step * torch.eye(40, dtype=torch.float64)[index]
        up = loss_of(inputs.logprobs_T + nudge_T, inputs.entropy_T)
        down = loss_of(inputs.logprobs_T - nudge_T, inputs.entropy_T)
        assert slopes[0][index].item() == pytest.approx(((up - down) / (2 * step)).item(), abs=1e-7)
        up = loss_of(inputs.logprobs_T, inputs.entropy_T + nudge_T)
        down = loss_of(inputs.logprobs_T, inputs.entropy_T - nudge_T)
        assert slopes[1][index].item() == pytest.approx(((up - down) / (2 * step)).item(), abs=1e-7)


def test_nothing_leaks_from_untrained_tokens() -> None:
    for garbage in GARBAGE:
        clean = random_inputs(3, 20, untrained=0.5)
        untrained_T = clean.weights_T == 0
        assert untrained_T.any(), garbage
        dirty = {
            f.name: torch.where(untrained_T, garbage, getattr(clean, f.name))
            for f in fields(LossInputs)
            if f.name not in ("weights_T", "sequences_T")
        }
        results = []
        for inputs in (require_grad(clean), require_grad(replace(clean, **dirty))):
            loss, metrics = policy_loss(inputs, EVERYTHING)
            results.append((loss, gradient(loss, inputs), summarise(metrics)))
        (loss, slopes, summary), (dirty_loss, dirty_slopes, dirty_summary) = results
        assert dirty_loss.item() == loss.item(), garbage
        torch.testing.assert_close(dirty_slopes, slopes, rtol=0, atol=0)
        assert dirty_summary == summary, garbage


def test_a_micro_batch_without_trained_tokens_is_silent() -> None:
    inputs = require_grad(replace(random_inputs(0, 8), weights_T=torch.zeros(8)))
    loss, metrics = policy_loss(inputs, EVERYTHING)
    assert loss.item() == 0.0
    assert all(not slope.any() for slope in gradient(loss, inputs))
    assert set(summarise(metrics).values()) == {0.0}


def test_terms_with_a_coefficient_need_their_input() -> None:
    inputs = inputs_of_ratios([1.0], [1.0], [1.0])
    with pytest.raises(AssertionError):
        policy_loss(inputs, LossConfig(kl_coefficient=0.1))
    with pytest.raises(AssertionError):
        policy_loss(inputs, LossConfig(entropy_coefficient=0.1))


def test_unchanged_policy_has_ratio_one_and_no_divergence() -> None:
    inputs = random_inputs(1, 30)
    inputs = replace(inputs, logprobs_T=inputs.old_logprobs_T)
    summary = summarise(policy_loss(inputs, LossConfig())[1])
    assert summary["ratio_mean"] == summary["ratio_max"] == 1.0
    assert summary["kl_k1_mean"] == summary["kl_k3_mean"] == 0.0
    assert summary["clip_low_share"] == summary["clip_high_share"] == 0.0


def test_nll() -> None:
    for garbage in GARBAGE:
        logprobs_T = double([-1.0, -2.0, garbage, -4.0]).requires_grad_()
        loss, metrics = nll_loss(logprobs_T, double([0.5, 0.25, 0.0, 0.125]))
        loss.backward()
        assert loss.item() == 1.5, garbage
        assert logprobs_T.grad.tolist() == [-0.5, -0.25, 0.0, -0.125], garbage
        assert summarise(metrics) == pytest.approx({"tokens": 3, "nll_mean": 7 / 3}), garbage


def test_token_scale() -> None:
    cases: list[tuple[Literal["constant", "token_mean", "sequence_mean"], float]] = [
        # Two episodes with 2 and 6 trained tokens whose terms are all 1 and all 3.
        ("constant", (2 * 1 + 6 * 3) / (2 * 10)),
        ("token_mean", (2 * 1 + 6 * 3) / 8),
        ("sequence_mean", (1 + 3) / 2),
    ]
    for aggregation, expected in cases:
        total = math.fsum(
            token_scale(
                aggregation, episodes=2, constant=10, trained_tokens=8, episode_tokens=tokens
            )
            * tokens
            * term
            for tokens, term in ((2, 1.0), (6, 3.0))
        )
        assert total == pytest.approx(expected), aggregation
