"""Limits on the importance weight between engine and learner, against published numbers.

Sources of the tables: SkyRL tests/train/algorithms/test_off_policy_correction.py and NeMo-RL
tests/unit/algorithms/test_loss_functions.py.
"""

from __future__ import annotations

import math

import pytest
import torch

from rlsys.algorithms.loss import LossInputs, policy_loss, summarise
from rlsys.algorithms.mismatch import importance_weights
from rlsys.config import LossConfig

ICEPOP = LossConfig(importance="icepop", importance_floor=0.5, importance_cap=5.0)


def geometric(floor: float, cap: float) -> LossConfig:
    return LossConfig(importance="sequence_mask", importance_floor=floor, importance_cap=cap)


def product(cap: float) -> LossConfig:
    return LossConfig(importance="sequence_truncate", importance_cap=cap)


E = math.exp


@pytest.mark.parametrize(
    ("config", "log_ratios", "trained", "weights", "limited"),
    [
        # SkyRL: token and sequence TIS.
        (LossConfig(), [0.5, -0.5, 1.0], "111", [E(0.5), E(-0.5), 2.0], "001"),
        (product(5.0), [0.5, -0.5, 1.0], "111", [E(1.0)] * 3, "000"),
        (product(5.0), [1.0, 1.0, 1.0], "111", [5.0] * 3, "111"),
        (product(10.0), [0.5, 0.0, 1.0], "101", [E(1.5)] * 3, "000"),
        # Published code that does not use the log-probs of the engine.
        (LossConfig(importance="none"), [0.5, math.inf, -9.0], "111", [1.0] * 3, "000"),
        # SkyRL: geometric mask.
        (geometric(0.9, 1.1), [0.1, -0.1, 0.0], "111", [E(0.1), E(-0.1), 1.0], "000"),
        (geometric(0.9, 1.1), [0.5, 0.5, 0.5], "111", [0.0] * 3, "111"),
        (geometric(0.9, 1.1), [-0.5, -0.5, -0.5], "111", [0.0] * 3, "111"),
        # NeMo-RL: geometric mask with the weights of the tokens, and an engine's log-prob of -inf.
        (geometric(0.999, 1.002), [0.0005] * 3, "111", [E(0.0005)] * 3, "000"),
        (geometric(0.999, 1.002), [0.0005, math.inf, 0.0005], "111", [0.0] * 3, "111"),
        # NeMo-RL: IcePop.
        (ICEPOP, [-0.5, 2.5, -0.2], "111", [E(-0.5), 0.0, E(-0.2)], "010"),
        (ICEPOP, [-0.7, math.inf, 0.0], "111", [0.0, 0.0, 1.0], "110"),
    ],
)
def test_published_weights(
    config: LossConfig, log_ratios: list[float], trained: str, weights: list[float], limited: str
) -> None:
    trained_T = torch.tensor([flag == "1" for flag in trained])
    found_T, limited_T = importance_weights(
        torch.tensor(log_ratios, dtype=torch.float64), trained_T, torch.zeros(3).long(), config
    )
    assert found_T.tolist() == pytest.approx(weights, abs=1e-6)
    assert limited_T.tolist() == [flag == "1" for flag in limited]


def test_sequences_are_told_apart_and_padding_counts_for_none() -> None:
    log_ratio_T = torch.tensor([0.5, 0.0, 0.1, 0.0, 0.0])
    trained_T = torch.tensor([True, True, True, True, False])
    sequences_T = torch.tensor([0, 1, 0, 1, -1])
    weights_T, _ = importance_weights(log_ratio_T, trained_T, sequences_T, product(9.0))
    assert weights_T[:4].tolist() == pytest.approx([E(0.6), 1.0, E(0.6), 1.0])


def test_published_loss_of_icepop() -> None:
    old_T = torch.tensor([-1.0, -1.0, -1.0], dtype=torch.float64)
    inputs = LossInputs(
        logprobs_T=old_T.clone().requires_grad_(),
        old_logprobs_T=old_T,
        sampled_logprobs_T=torch.tensor([-0.5, -3.5, -0.8], dtype=torch.float64),
        advantages_T=torch.tensor([1.0, -1.0, 2.0], dtype=torch.float64),
        weights_T=torch.full((3,), 1 / 3, dtype=torch.float64),
    )
    loss, metrics = policy_loss(inputs, ICEPOP)
    assert loss.item() == pytest.approx((-E(-0.5) - 2 * E(-0.2)) / 3, abs=1e-6)
    assert summarise(metrics)["importance_truncated_share"] == pytest.approx(1 / 3)
    (gradient_T,) = torch.autograd.grad(loss, inputs.logprobs_T)
    assert gradient_T.tolist() == pytest.approx([-E(-0.5) / 3, 0.0, -2 * E(-0.2) / 3])
