"""Seeds: the range that clients may send, and the range that training and sessions use."""

import functools
import operator

import pytest
from pydantic import ValidationError

from rlsys.config import EconomicsEvaluationConfig
from rlsys.environments.dialogue import training_episodes
from rlsys.environments.economics import EconomicsEnvironment
from rlsys.environments.economics.models import ResetOptions
from rlsys.environments.seeds import derive_seed

LARGEST = 9_007_199_254_740_991  # 2**53 - 1, the largest integer that JavaScript keeps exact
HALF = 2**52


def all_bits(seeds: list[int] | set[int]) -> int:
    """The bits that are set in at least one seed."""
    return functools.reduce(operator.or_, seeds)


def test_clients_may_send_every_seed_up_to_the_largest() -> None:
    for seed in (0, 1, HALF - 1, HALF, LARGEST - 1, LARGEST):
        assert ResetOptions(seed=seed).seed == seed
    for seed in (-1, LARGEST + 1):
        with pytest.raises(ValidationError, match="seed"):
            ResetOptions(seed=seed)


def test_a_session_reports_the_largest_seed_and_draws_from_the_full_range() -> None:
    env = EconomicsEnvironment({"problems": 1})
    assert env.reset(seed=LARGEST).seed == LARGEST
    drawn = {env.reset().seed for _ in range(64)}
    # 64 uniform seeds miss the upper half, or one given bit, with a chance of 2**-64.
    assert len(drawn) == 64
    assert HALF <= max(drawn) <= LARGEST
    assert all_bits(drawn) == LARGEST


def test_training_seeds_are_the_lowest_53_bits_of_the_derived_ones() -> None:
    seeds = [int(problem.id) for problem in training_episodes(7, 256)]
    assert seeds == [derive_seed(7, "episode", i) % 2**53 for i in range(256)]
    assert len(set(seeds)) == 256
    assert all_bits(seeds) == LARGEST
    upper = sum(seed >= HALF for seed in seeds)
    assert 96 <= upper <= 160  # half of them, within four standard deviations of 8


def test_training_and_the_environment_share_one_range() -> None:
    for problem in training_episodes(7, 64):
        assert ResetOptions(seed=int(problem.id)).seed == int(problem.id)


def test_a_benchmark_may_use_seeds_up_to_the_largest() -> None:
    counts = {"episodes": 3, "warmup": 2}
    last = EconomicsEvaluationConfig(seed=LARGEST - 4, **counts)
    assert last.warmup_seeds[-1] == LARGEST
    with pytest.raises(ValidationError, match="too few seeds"):
        EconomicsEvaluationConfig(seed=LARGEST - 3, **counts)
