"""Rewards against worked numbers: both rules, and the orderings that the default promises."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlsys.config.economics import EconomicsConfig, Mode, Rules
from rlsys.environments.economics.models import RewardTerms
from rlsys.environments.economics.rewards import (
    D2,
    Coefficients,
    D,
    RewardParts,
    coefficient_set,
    episode_bonus,
    reward_range,
    step_parts,
    step_reward,
    unanswered_penalty,
)

EXACT = 1e-9


def near(value: float | list[float] | tuple[float, ...]) -> Any:
    return pytest.approx(value, abs=EXACT)


def play(
    budget: int, tokens: list[int], right: list[bool], **options: Any
) -> tuple[list[float], int]:
    """Rewards of an episode that answers everything, bonus on the last; and the tokens spent."""
    bonus_options = {k: v for k, v in options.items() if k in ("rules", "coefficients")}
    rewards: list[float] = []
    spent = 0
    for t, correct in zip(tokens, right, strict=True):
        rewards.append(step_reward(correct, t, budget, len(tokens), spent_before=spent, **options))
        spent += t
    rewards[-1] += episode_bonus(sum(right), spent, budget, len(tokens), **bonus_options)
    return rewards, spent


@pytest.mark.parametrize("rules", ["default", "compat"])
def test_v1_v2_single_answers(rules: Rules) -> None:
    for correct, tokens, expected in (
        (True, 100, 1.05),
        (True, 200, 1.00),
        (True, 300, 0.925),
        (True, 0, 1.10),
        (False, 100, -0.10),
        (False, 300, -0.125),
    ):
        assert step_reward(correct, tokens, 2000, 10, rules=rules) == near(expected)


@pytest.mark.parametrize("rules", ["default", "compat"])
def test_v3_ten_right_answers(rules: Rules) -> None:
    rewards, spent = play(2000, [180] * 10, [True] * 10, rules=rules)
    assert rewards == near([1.01] * 9 + [1.51])
    assert sum(rewards) == near(10.60)
    assert spent == 1800


@pytest.mark.parametrize("rules", ["default", "compat"])
def test_v4_mixed_answers(rules: Rules) -> None:
    tokens = [100, 300, 200, 200, 200, 200, 200, 200, 150, 50]
    right = [letter == "T" for letter in "TFTTFTTTFT"]
    rewards, _ = play(2000, tokens, right, rules=rules)
    assert rewards == near([1.05, -0.125, 1, 1, -0.1, 1, 1, 1, -0.1, 1.425])
    assert sum(rewards) == near(7.15)
    assert episode_bonus(7, 1800, 2000, 10, rules=rules) == near(0.35)


def test_v5_b8_overspend_is_billed_once() -> None:
    compat, _ = play(100, [30] * 10, [False] * 10, mode="soft", rules="compat")
    assert compat == near([-0.2] * 3 + [-0.7, -1.45, -2.2, -2.95, -3.7, -4.45, -5.2])
    assert sum(compat) == near(-21.25)
    fixed, spent = play(100, [30] * 10, [False] * 10, mode="soft")
    assert fixed == near([-0.2] * 3 + [-0.7] + [-0.95] * 6)
    assert sum(fixed) == near(-7.00)
    assert spent == 300


def test_v7_a_long_right_answer() -> None:
    reward = step_reward(True, 95, 100, 10, rules="compat")
    assert reward + episode_bonus(1, 95, 100, 10, rules="compat") == near(-0.2275)
    parts = step_parts(True, 95, 100, 10, rules="compat")
    assert parts == near((1.0, -0.425, -0.85, 0.0, 0.0, 0.0))
    assert step_parts(True, 95, 100, 10) == near((1.0, -0.425, -0.5, 0.0, 0.0, 0.0))


def test_v8_an_answer_past_the_budget_is_charged_up_to_it() -> None:
    bonus = episode_bonus(1, 100, 100, 10, rules="compat")
    assert step_reward(True, 500, 100, 10, rules="compat") + bonus == near(-0.305)
    assert step_reward(False, 500, 100, 10, rules="compat") == near(-0.55)
    assert step_reward(False, 500, 100, 10) == near(-0.55)
    assert step_reward(False, 100, 100, 10) == near(-0.55)


def test_v9_late_short_answers_pay_for_their_own_tokens() -> None:
    tokens = [1000, 1000, 800] + [100] * 7
    compat, _ = play(2000, tokens, [True] * 10, mode="soft", rules="compat")
    assert compat == near([0.4, 0.4, -0.45, -0.075, -0.2, -0.325, -0.45, -0.575, -0.7, -0.75])
    assert sum(compat) == near(-2.725)
    fixed, spent = play(2000, tokens, [True] * 10, mode="soft")
    assert fixed == near([0.4, 0.4, -0.45] + [0.925] * 6 + [0.925 + 0.075])
    assert sum(fixed) == near(6.90)
    assert spent == 3500
    assert episode_bonus(10, 3500, 2000, 10) == near(0.075)


def test_v14_episode_bonus() -> None:
    for correct, spent, compat, default in (
        (10, 1800, 0.5, 0.5),
        (10, 200, 0.1, 0.5),
        (5, 2000, 0.225, 0.225),
        (5, 4000, 0.0, 0.0),
        (3, 0, 0.015, 0.15),
        (0, 1800, 0.0, 0.0),
    ):
        assert episode_bonus(correct, spent, 2000, 10, rules="compat") == near(compat)
        assert episode_bonus(correct, spent, 2000, 10) == near(default)


@pytest.mark.parametrize("rules", ["default", "compat"])
def test_v17_second_coefficient_set(rules: Rules) -> None:
    rewards, _ = play(2000, [170] * 10, [True] * 10, rules=rules, coefficients=D2)
    assert rewards == near([1.0225] * 9 + [1.4225])
    assert sum(rewards) == near(10.625)


def test_v18_b9_right_is_better_than_wrong() -> None:
    compat: dict[str, Any] = {"mode": "soft", "rules": "compat"}
    assert step_reward(True, 2800, 2000, 10, **compat) == near(-1.95)
    assert step_reward(False, 2800, 2000, 10, **compat) == near(-1.75)
    assert step_reward(False, 2800, 2000, 10, mode="soft") == near(-1.75)
    assert step_reward(True, 2800, 2000, 10, mode="soft") == near(1 - 0.65 - 0.5 - 1.0)


@given(
    tokens=st.integers(0, 10**7),
    budget=st.integers(1, 10**6),
    problems=st.integers(1, 50),
    spent_before=st.integers(0, 10**7),
    mode=st.sampled_from(["hard", "soft"]),
    coefficients=st.sampled_from([D, D2]),
)
def test_b9_right_is_better_than_wrong_at_any_length(
    tokens: int,
    budget: int,
    problems: int,
    spent_before: int,
    mode: Mode,
    coefficients: Coefficients,
) -> None:
    right, wrong = (
        step_reward(
            correct,
            tokens,
            budget,
            problems,
            spent_before=spent_before,
            mode=mode,
            coefficients=coefficients,
        )
        for correct in (True, False)
    )
    assert right >= wrong + 0.6 - EXACT


def test_b10_padding_wrong_answers_earns_nothing() -> None:
    right = [True] * 3 + [False] * 7
    for rules, padding_pays in (("compat", True), ("default", False)):
        terse, _ = play(2000, [100] * 3 + [50] * 7, right, rules=rules)
        padded, _ = play(2000, [100] * 3 + [200] * 7, right, rules=rules)
        assert (sum(padded) > sum(terse) + EXACT) is padding_pays


@given(
    correct=st.integers(0, 10),
    spent=st.integers(0, 5000),
    more=st.integers(0, 5000),
)
def test_b10_the_bonus_never_grows_with_spending(correct: int, spent: int, more: int) -> None:
    less = episode_bonus(correct, spent + more, 2000, 10)
    assert less <= episode_bonus(correct, spent, 2000, 10) + EXACT


def test_b11_unreached_problems_cost_what_the_cheapest_wrong_answer_costs() -> None:
    assert unanswered_penalty(9, rules="compat") == 0.0
    assert unanswered_penalty(9) == near(9 * step_reward(False, 0, 2000, 10))


def test_what_has_no_reward_is_refused() -> None:
    new: Any = "new"
    firm: Any = "firm"
    d3: Any = "D3"
    refused: tuple[tuple[Callable[[], object], str], ...] = (
        (lambda: step_reward(True, 5, 100, 10, rules=new), "rules is 'new' .* 'default' or 'co"),
        (lambda: step_reward(True, 5, 100, 10, mode=firm), "mode is 'firm' .* 'hard' or 'soft'"),
        (lambda: step_parts(True, -5, 100, 10), "tokens is -5 but should be 0 or more"),
        (lambda: step_parts(True, 5, 100, 10, spent_before=-1), "spent_before is -1 but"),
        (lambda: episode_bonus(1, 5, 100, 10, rules=new), "rules is 'new'"),
        (lambda: episode_bonus(1, -5, 100, 10), "spent is -5 but"),
        (lambda: episode_bonus(-1, 5, 100, 10), "correct is -1 but"),
        (lambda: unanswered_penalty(1, rules=new), "rules is 'new'"),
        (lambda: unanswered_penalty(-1), "unanswered is -1 but"),
        (lambda: reward_range(10, mode=firm), "mode is 'firm'"),
        (lambda: reward_range(10, rules=new), "rules is 'new'"),
        (lambda: reward_range(0), "problems is 0 but"),
        (lambda: coefficient_set(d3), "coefficients is 'D3' but should be 'D' or 'D2'"),
    )
    for call, sentence in refused:
        with pytest.raises(ValueError, match=sentence):
            call()


def test_no_fair_share_leaves_correctness_alone() -> None:
    assert step_reward(True, 5, 0, 10, mode="soft", rules="compat") == 1.0
    assert step_reward(False, 5, 100, 0) == -0.1
    assert episode_bonus(3, 5, 0, 10) == 0.0
    assert episode_bonus(3, 5, 100, 0) == 0.0


def test_parts_sum_to_the_reward() -> None:
    parts = RewardParts(1.0, -0.25, 0.5, -0.125, 0.25, -0.5)
    assert parts.total == 0.875
    assert parts.end_reward == RewardTerms(**parts._asdict()).end_reward == -0.25


def test_the_defaults_are_those_of_the_environment() -> None:
    config = EconomicsConfig()
    chosen: dict[str, Any] = {
        "rules": config.rules,
        "coefficients": coefficient_set(config.coefficients),
    }
    # A long answer beyond the budget, for which each mode, rule and set gives another reward.
    beyond: dict[str, Any] = {"spent_before": 1900}
    for correct in (True, False):
        assert step_reward(correct, 3000, 2000, 10, **beyond) == step_reward(
            correct, 3000, 2000, 10, **beyond, mode=config.mode, **chosen
        )
    assert episode_bonus(10, 200, 2000, 10) == episode_bonus(10, 200, 2000, 10, **chosen) == 0.5
    assert unanswered_penalty(3) == unanswered_penalty(3, **chosen) == near(-0.3)
    assert reward_range(10) == reward_range(10, mode=config.mode, **chosen)


def test_reward_range_of_the_declared_configurations() -> None:
    assert reward_range(10) == near((-0.1 - 0.45 - 0.9, 1.6))
    assert reward_range(10, rules="compat") == near((-0.55, 1.6))
    assert reward_range(10, mode="soft") == near((-10.1, 1.6))
    low, high = reward_range(10, mode="soft", rules="compat")
    assert low == float("-inf")
    assert high == near(1.6)
    assert reward_range(50, rules="compat")[0] == near(1 - 0.05 * 49 - 0.1 * 49)


@given(
    shares=st.lists(st.tuples(st.booleans(), st.integers(0, 5000)), min_size=1, max_size=12),
    budget=st.integers(1, 5000),
    mode=st.sampled_from(["hard", "soft"]),
    rules=st.sampled_from(["default", "compat"]),
)
def test_no_step_leaves_the_declared_range(
    shares: list[tuple[bool, int]], budget: int, mode: Mode, rules: Rules
) -> None:
    low, high = reward_range(len(shares), mode=mode, rules=rules)
    spent = 0
    for index, (correct, tokens) in enumerate(shares):
        parts = step_parts(
            correct, tokens, budget, len(shares), spent_before=spent, mode=mode, rules=rules
        )
        spent += min(tokens, budget - spent) if mode == "hard" else tokens
        stopped = unanswered_penalty(len(shares) - index - 1, rules=rules)
        last = episode_bonus(sum(c for c, _ in shares[: index + 1]), spent, budget, len(shares))
        # Strictly: OpenEnv's own check has no tolerance.
        assert low <= parts.total <= high
        if mode == "hard":
            assert low <= parts._replace(bonus=last, unanswered=stopped).total <= high


def test_a_first_answer_that_spends_every_budget_earns_the_lower_bound() -> None:
    # Every budget, because float error must not leave the range for any of them.
    assert reward_range(10)[0] == -1.45
    wrong = {
        budget: reward
        for budget in range(10, 400)
        if (reward := ended(step_parts(False, 600, budget, 10)).total) != -1.45
    }
    assert wrong == {}


def ended(parts: RewardParts) -> RewardParts:
    """The terms of a first answer that leaves nine questions unanswered."""
    return parts._replace(unanswered=unanswered_penalty(9))
