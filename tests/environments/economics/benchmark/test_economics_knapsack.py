"""The oracle's knapsack against all allocations, one by one."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.random._generator import Generator

from rlsys.config.economics import EconomicsConfig
from rlsys.environments.economics.benchmark.knapsack import (
    STATES,
    LengthCurve,
    best_return,
    estimated_curve,
    exact_curve,
)
from rlsys.environments.economics.rewards import (
    coefficient_set,
    episode_bonus,
    step_reward,
    unanswered_penalty,
)


def expected_return(
    choice: list[int] | tuple[int, ...],
    curves: list[LengthCurve],
    budget: int,
    config: EconomicsConfig,
) -> float | None:
    """Play one allocation out; None if it does not fit a hard budget."""
    rules: dict[str, Any] = {
        "rules": config.rules,
        "coefficients": coefficient_set(config.coefficients),
    }
    spent, right, total, n = 0, 0.0, 0.0, len(curves)
    for index, (k, curve) in enumerate(zip(choice, curves, strict=True)):
        tokens, p = int(curve.tokens_K[k]), curve.success_K[k]
        if config.mode == "hard" and tokens > budget - spent:
            return None
        for correct, chance in ((True, p), (False, 1 - p)):
            total += chance * step_reward(
                correct, tokens, budget, n, spent_before=spent, mode=config.mode, **rules
            )
        spent, right = spent + tokens, right + p
        if config.mode == "hard" and budget - spent < config.min_tokens:
            total += unanswered_penalty(n - 1 - index, **rules)
            break
    # The bonus is linear in the number of right answers.
    return total + right * episode_bonus(1, spent, budget, n, **rules)


def brute_force(curves: list[LengthCurve], budget: int, config: EconomicsConfig) -> float:
    choices = product(*(range(len(curve.tokens_K)) for curve in curves))
    returns = [expected_return(choice, curves, budget, config) for choice in choices]
    return max(value for value in returns if value is not None)


def random_curves(rng: Generator, questions: int) -> Iterator[LengthCurve]:
    for _ in range(questions):
        lengths = np.unique(rng.integers(1, 40, rng.integers(1, 4)))
        yield LengthCurve(
            np.concatenate([[rng.integers(0, 2)], lengths]),
            np.concatenate([[0.0], np.sort(rng.random(len(lengths)))]),
        )


@pytest.mark.parametrize("mode", ["hard", "soft"])
@pytest.mark.parametrize("rules", ["default", "compat"])
def test_no_allocation_earns_more(mode: str, rules: str) -> None:
    for seed in range(12):
        rng = np.random.default_rng(seed)
        config = EconomicsConfig(mode=mode, rules=rules, min_tokens=int(rng.integers(1, 12)))
        curves = list(random_curves(rng, 5))
        budget = int(rng.integers(12, 120))
        expected = brute_force(curves, budget, config)
        assert best_return(curves, budget, config) == pytest.approx(expected, abs=1e-9), seed


def test_a_worked_budget() -> None:
    # f = 50; 20 + 60 fit into 100, 20 + 90 do not, and the episode ends with 20 left.
    curves = [exact_curve(20), exact_curve(60), exact_curve(90)]
    config = EconomicsConfig(min_tokens=10)
    # Right with 20: 1 + 0.1 (1 - 0.6); right with 60: 1 - 0.05 * 0.8 - 0.1 * 0.8; wrong with 0;
    # the bonus of 2 of 3 at 80 % is full. f = 100/3.
    assert best_return(curves, 100, config) == pytest.approx(1.04 + 0.88 - 0.1 + 0.5 * 2 / 3)


def test_a_large_budget_is_counted_in_units() -> None:
    curves = [exact_curve(1000 + 7 * i) for i in range(10)]
    config = EconomicsConfig()
    total = sum(int(curve.tokens_K[1]) for curve in curves)
    assert total > STATES
    all_right = expected_return([1] * 10, curves, 2 * total, config)
    assert best_return(curves, 2 * total, config) == pytest.approx(all_right)
    cheap = expected_return([1] * 5 + [0] * 5, curves, total // 2, config)
    # 5,157 tokens in units of 6: each of five answers is rounded up by less than one unit.
    assert cheap is not None
    assert cheap - 0.002 < best_return(curves, total // 2, config) <= cheap + 1e-9


def test_estimated_curve_of_four_answers() -> None:
    tokens, right = np.array([10, 20, 15, 30]), np.array([True, True, False, False])
    lengths, success = estimated_curve(tokens, right, empty=1)
    assert lengths.tolist() == [1, 10, 16]  # (10 + 20 + 15 + 20) / 4 = 16.25
    assert success.tolist() == [0.0, 0.25, 0.5]
    lengths, success = estimated_curve(tokens, np.zeros(4, bool), empty=0)
    assert (lengths.tolist(), success.tolist()) == ([0], [0.0])


def test_an_estimated_curve_has_few_points_and_ends_with_all_that_was_right() -> None:
    tokens = np.arange(1, 1001)
    lengths, success = estimated_curve(tokens, tokens % 2 == 0, empty=0)
    assert len(lengths) == 17
    assert (lengths[-1], success[-1]) == (500, 0.5)  # the mean of 1 to 1000 is 500.5
