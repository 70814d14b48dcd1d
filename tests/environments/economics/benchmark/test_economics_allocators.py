"""Allocators and solvers against worked examples."""

import numpy as np

from rlsys.environments.economics import EconomicsConfig, EconomicsEnvironment
from rlsys.environments.economics.benchmark.allocators import (
    DifficultyOracle,
    GreedyMax,
    LinUCB,
    Uniform,
)
from rlsys.environments.economics.benchmark.solvers import ColumnAdder, Filler
from rlsys.environments.economics.counting import WORDS, load_tokenizer
from rlsys.environments.economics.models import EconomicsObservation


def observation(**fields: float | str) -> EconomicsObservation:
    env = EconomicsEnvironment(EconomicsConfig(reveal_type=True))
    seen = env.reset(seed=1, total_budget=2000)
    for name, value in fields.items():
        setattr(seen, name, value)
    return seen


def test_uniform_shares_what_is_left() -> None:
    assert Uniform(10, 800).allocate(observation(budget_per_remaining=200.9)) == 200
    assert Uniform(10, 800).allocate(observation(budget_per_remaining=3.0)) == 10
    assert Uniform(10, 800).allocate(observation(budget_per_remaining=1620.0)) == 800


def test_greedy_takes_all_it_may() -> None:
    assert GreedyMax(10, 800).allocate(observation(remaining_budget=2000.0)) == 800
    assert GreedyMax(10, 800).allocate(observation(remaining_budget=300.0)) == 300


def test_the_difficulty_oracle_allocates_by_type() -> None:
    expected = {
        "GSM_SV": 100,
        "GSM_FOBAR": 140,
        "MATH_AnsAug": 400,
        "NuminaMath_TIR": 700,
        "arithmetic_6": 48,
        "other": 300,
        None: 300,
    }
    seen = observation()
    for kind, tokens in expected.items():
        seen.problem_type = kind
        assert DifficultyOracle(10, 800).allocate(seen) == tokens, kind


def test_linucb_against_the_normal_equations() -> None:
    bandit = LinUCB(10, 100, arms=3)
    seen = [observation(remaining_budget=float(left)) for left in (2000, 1500, 700)]
    rewards = [1.0, -0.1, 0.5]
    for one, reward in zip(seen, rewards, strict=True):
        bandit.learn(one, 55, reward)
    X = np.stack([bandit.features(one) for one in seen])
    A = np.eye(5) + X.T @ X
    x = bandit.features(seen[0])
    theta = np.linalg.solve(A, X.T @ np.array(rewards))
    played = theta @ x + np.sqrt(x @ np.linalg.solve(A, x))
    unplayed = np.sqrt(x @ x)
    expected = 55 if played > unplayed else 10
    assert bandit.allocate(seen[0]) == expected
    bandit.alpha = 0.0
    assert bandit.allocate(seen[0]) == 55


def test_b20_the_bandit_learns_what_each_question_needs() -> None:
    rng = np.random.default_rng(0)
    bandit = LinUCB(10, 100, arms=4, alpha=2.0)
    short, long = observation(question="1+1"), observation(question="1" + "+1" * 40)
    for _ in range(600):
        x, needed = (short, 10) if rng.random() < 0.5 else (long, 70)
        tokens = bandit.allocate(x)
        bandit.learn(x, tokens, float(tokens >= needed) - tokens / 100)
    bandit.alpha = 0.0
    assert (bandit.allocate(short), bandit.allocate(long)) == (10, 70)


def test_filler_is_as_long_as_allowed() -> None:
    for counter in (WORDS, load_tokenizer("tiny")):
        for tokens in (10, 11, 57, 200):
            text = Filler(counter)("1+1", tokens)
            assert text.endswith("\\boxed{0}")
            assert counter.count(text) <= tokens < counter.count("step " + text)


def test_the_adder_works_it_out_or_is_cut_off() -> None:
    adder = ColumnAdder(WORDS)
    assert adder("3+8-2", 100) == "3 +8 = 11 -2 = 9 \\boxed{9}"
    assert adder("3+8-2", 5).split() == ["3", "+8", "=", "11"]
    assert adder.needed("3+8-2") == 10  # 8 words
    assert adder("3+8-2", 10) == adder("3+8-2", 100) != adder("3+8-2", 9)
