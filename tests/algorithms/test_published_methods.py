"""Rewards and baselines of published methods, against the numbers of other implementations' tests.

Sources of the tables: SkyRL tests/backends/skyrl_train/utils/test_ppo_utils.py, NeMo-RL
tests/unit/algorithms/test_reward_functions.py, prime-rl tests/unit/orchestrator/test_advantage.py.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from rlsys.algorithms import grpo, lcpo, overlong
from rlsys.algorithms.kl import kl_estimate, kl_to_go
from rlsys.algorithms.loss import batch_normalisation


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([6.0, 3.0], [1.5 / 4.5, -1.5 / 4.5]),  # SkyRL
        ([9.0, 12.0], [-1.5 / 10.5, 1.5 / 10.5]),  # SkyRL
        ([1.0, 0.0, 0.0, 0.0], [3.0, -1.0, -1.0, -1.0]),  # prime-rl
        ([0.0, 0.0], [0.0, 0.0]),
        ([0.7, 0.7, 0.7], [0.0, 0.0, 0.0]),
    ],
)
def test_maxrl_divides_by_the_mean_reward(rewards: list[float], expected: list[float]) -> None:
    assert_allclose(grpo.advantages(rewards, scale="mean"), expected, atol=1e-6)


def test_maxrl_refuses_negative_rewards() -> None:
    with pytest.raises(ValueError, match=r"reward -0\.5 is negative"):
        grpo.advantages([1.0, -0.5], scale="mean")


def test_soft_overlong_penalty() -> None:
    lengths = [10, 15, 18, 20, 22, 25]
    found = overlong.penalties(lengths, limit=25, buffer=5, penalty=0.5)
    assert_allclose(found, [0, 0, 0, 0, -0.2, -0.5], atol=1e-6)  # NeMo-RL
    # Beyond the limit the paper's Eq. 13 stays at -1, and NeMo-RL's table falls on.
    assert_array_equal(overlong.penalties([30, 999], limit=25, buffer=5), [-1, -1])
    assert overlong.penalties([24, 25, 26], limit=25, buffer=1).tolist() == [0, -1, -1]


def test_lcpo_exact_pays_for_every_token_of_distance() -> None:
    # By hand, with the alpha of the paper: 1 - 0.0003 * 100, 0 - 0.0003 * 500.
    found = lcpo.rewards([1, 0, 1], [1100, 500, 1000], target=1000)
    assert_allclose(found, [0.97, -0.15, 1.0], atol=1e-9)


def test_reinforce_plus_plus_whitens_over_the_batch() -> None:
    # NeMo-RL's rewards; mean 1.5, deviation 1.118034.
    rewards_N = np.array([0.0, 1.0, 2.0, 3.0])
    shift, scale = batch_normalisation(6.0, 14.0, 4, whiten=True)
    assert_allclose(
        (rewards_N - shift) * scale, [-1.3416408, -0.4472136, 0.4472136, 1.3416408], atol=1e-6
    )
    # Without whitening the mean of their squares becomes 1.
    shift, scale = batch_normalisation(6.0, 14.0, 4, whiten=False)
    assert shift == 0.0
    assert np.square(rewards_N * scale).mean() == pytest.approx(1.0)


def test_a_batch_of_equal_rewards_is_not_scaled_up() -> None:
    shift, scale = batch_normalisation(0.3 * 7, 0.09 * 7, 7, whiten=True)
    assert (0.3 - shift) * scale == pytest.approx(0.0, abs=1e-6)
    assert_allclose(batch_normalisation(0.0, 0.0, 0, whiten=True), (0.0, 1e4))


def test_estimates_of_the_divergence() -> None:
    logprobs_T, other_T = torch.tensor([0.2, 0.3]), torch.tensor([0.1, 0.2])  # SkyRL
    for name, expected in (("k1", 0.1), ("k2", 0.005), ("k3", 0.0048374)):
        found_T = kl_estimate(logprobs_T, other_T, name)  # type: ignore[arg-type]
        assert_allclose(found_T, [expected] * 2, atol=1e-6)


def row(values: list[float]) -> torch.Tensor:
    return torch.tensor([values], dtype=torch.float64)


def test_kl_in_the_reward_of_a_plain_sequence_is_a_return() -> None:
    # SkyRL's REINFORCE++ table without discount: rewards 1, 2, 3, of which the last is masked.
    costs, zeros = row([1.0, 2.0, 3.0]), row([0.0, 0.0, 0.0])
    exits = torch.tensor([[3, 3, 3]])
    every, first_two = torch.tensor([[True] * 3]), torch.tensor([[True, True, False]])
    assert kl_to_go(costs, zeros, every, exits, "k1").tolist() == [[6.0, 5.0, 3.0]]
    assert kl_to_go(costs, zeros, first_two, exits, "k1").tolist() == [[3.0, 2.0, 0.0]]


def test_kl_in_the_reward_of_a_tree_counts_the_branches_below() -> None:
    # A thought of tokens 0, 1 and 4; the branch 2, 3 follows token 1. A second tree is token 5;
    # token 6 is padding with an estimate that is no number.
    costs = row([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, float("nan")])
    exits = torch.tensor([[5, 5, 4, 4, 5, 6, 7]])
    trained = torch.tensor([[True] * 6 + [False]])
    found = kl_to_go(costs, torch.zeros_like(costs), trained, exits, "k1")
    assert found.tolist() == [[31.0, 30.0, 12.0, 8.0, 16.0, 32.0, 0.0]]
