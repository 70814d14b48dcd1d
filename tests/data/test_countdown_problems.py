"""The Countdown generator: problems that can be solved, and the held-out split."""

from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from rlsys.config import CountdownData, CountdownShape, GradingConfig
from rlsys.config.data import MOST_VALUE
from rlsys.data.countdown import (
    Puzzle,
    Step,
    countdown_problems,
    draw_puzzles,
    expression,
    is_held_out,
    steps_between,
)
from rlsys.data.problems import load_problems
from rlsys.errors import DataError
from rlsys.grading.countdown import countdown_gold, solves


def numbers_of(text: str) -> tuple[int, ...]:
    gold = countdown_gold(text)
    assert gold is not None
    return gold.numbers


def reachable(numbers: tuple[Fraction, ...]) -> set[Fraction]:
    """Every value that all the numbers can be combined to, by brute force."""
    if len(numbers) == 1:
        return set(numbers)
    found: set[Fraction] = set()
    for i, j in combinations(range(len(numbers)), 2):
        others = tuple(n for k, n in enumerate(numbers) if k not in (i, j))
        a, b = numbers[i], numbers[j]
        results = {a + b, a - b, b - a, a * b} | {x / y for x, y in ((a, b), (b, a)) if y}
        for result in results:
            found |= reachable((*others, result))
    return found


@settings(max_examples=30, deadline=None)
@given(
    counts=st.tuples(st.integers(2, 6), st.integers(2, 6)).map(sorted),
    largest=st.integers(9, 99),
    seed=st.integers(0, 1000),
    held_out=st.booleans(),
)
def test_every_problem_has_the_solution_it_was_drawn_with(
    counts: list[int], largest: int, seed: int, held_out: bool
) -> None:
    shape = CountdownShape(difficulty=(counts[0], counts[1]), largest=largest, targets=(5, 200))
    for puzzle in draw_puzzles(np.random.default_rng(seed), shape, held_out, 20):
        assert counts[0] <= len(puzzle.numbers) <= counts[1]
        assert all(1 <= number <= largest for number in puzzle.numbers)
        assert 5 <= puzzle.target <= 200
        assert all(1 <= step.result <= MOST_VALUE for step in puzzle.solution)
        assert solves(expression(puzzle.numbers, puzzle.solution), puzzle.text)
        assert is_held_out(puzzle.numbers) == held_out


def test_brute_force_reaches_every_target() -> None:
    for problem in countdown_problems(CountdownData(difficulty=(3, 4), size=12)):
        gold = countdown_gold(problem.answer)
        assert gold is not None
        assert Fraction(gold.target) in reachable(tuple(map(Fraction, gold.numbers)))


def test_problems_are_the_same_for_the_same_configuration() -> None:
    config = CountdownData(seed=5, size=300)
    problems = load_problems(config)
    assert problems == load_problems(config)
    assert len({p.id for p in problems}) == len(problems) == 300
    assert {p.difficulty for p in problems} == {3.0, 4.0}
    other = countdown_problems(config.model_copy(update={"seed": 6}))
    assert [p.text for p in problems] != [p.text for p in other]
    longer = countdown_problems(config.model_copy(update={"size": 700}))
    assert longer[:300] == problems


def test_no_seed_lets_the_numbers_of_an_evaluation_problem_into_training() -> None:
    """Neither with another target nor in another order."""
    sides = {
        held_out: {
            numbers_of(problem.text)
            for seed in (0, 1_000_003)
            for problem in countdown_problems(
                CountdownData(largest=9, seed=seed, size=1500, held_out=held_out)
            )
        }
        for held_out in (False, True)
    }
    assert sides[False] and sides[True]
    assert not sides[False] & sides[True]
    assert is_held_out((3, 8, 5)) == is_held_out((8, 5, 3))


def test_a_quarter_of_all_sets_of_numbers_is_held_out() -> None:
    sets = list(combinations(range(1, 30), 3))
    assert 0.2 < np.mean([is_held_out(numbers) for numbers in sets]) < 0.3


def test_the_steps_between_two_numbers() -> None:
    assert [step.text for step in steps_between(6, 3)] == ["6+3=9", "6-3=3", "6*3=18", "6/3=2"]
    assert [step.text for step in steps_between(7, 7)] == ["7+7=14", "7*7=49", "7/7=1"]
    assert [step.text for step in steps_between(5, 1)] == ["5+1=6", "5-1=4", "5*1=5"]
    assert [step.text for step in steps_between(999, 998)] == ["999-998=1"]
    assert all(steps_between(a, b) for a in range(1, MOST_VALUE + 1, 7) for b in range(1, a + 1))


def test_the_expression_of_steps() -> None:
    numbers = (19, 35, 44)
    steps = [Step(44, "+", 35, 79), Step(79, "+", 19, 98)]
    assert Puzzle(numbers, 98, tuple(steps)).text == "19,35,44->98"
    assert expression(numbers, steps) == "(44+35)+19"
    steps = [Step(8, "/", 2, 4), Step(4, "*", 4, 16)]  # one 4 is given, the other is a result
    assert expression((2, 4, 8), steps) == "(8/2)*4"


def test_impossible_settings_are_refused() -> None:
    for key, value in (
        ("difficulty", (1, 3)),
        ("difficulty", (4, 3)),
        ("difficulty", (3, 7)),
        ("targets", (9, 5)),
        ("targets", (10, 1000)),
        ("largest", 1000),
    ):
        with pytest.raises(ValidationError, match=key):
            CountdownData.model_validate({key: value})


def test_targets_that_no_numbers_reach_are_refused() -> None:
    config = CountdownData(difficulty=(2, 2), largest=3, targets=(900, 999))
    with pytest.raises(DataError, match=r"no training .* targets \(900, 999\); widen"):
        countdown_problems(config)


def test_grading_of_countdown_cannot_be_audited() -> None:
    with pytest.raises(ValidationError, match="audit_share"):
        GradingConfig(policy="countdown", audit_share=0.1)
