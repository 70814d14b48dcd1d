"""The arithmetic generator: its problems, the held-out split, and the traces written about them."""

import re

import numpy as np
import pytest

from rlsys.config import ArithmeticData, DataConfig, TraceHabits
from rlsys.data.arithmetic import (
    arithmetic_problem,
    arithmetic_problems,
    draw_texts,
    is_held_out,
    signed_terms,
)
from rlsys.sft.traces import (
    MOST_RECHECKS,
    Step,
    Trace,
    draw_trace,
)
from rlsys.types import Problem

PROBLEM = Problem(id="p", text="3+8-2", answer="9", difficulty=3.0)
FIRST = (Step("3+8=11", 11, False), Step(";11-2=9", 9, True))
SLIPPED = (Step("3+8=12", 12, False), Step(";12-2=10", 10, True))
RECHECK = (Step("?3+8=11", 11, False), Step(";11-2=9", 9, True))


def test_signed_terms_of_a_problem() -> None:
    assert signed_terms("3+8-2") == [3, 8, -2]


def test_problem_works_out_its_answer() -> None:
    assert arithmetic_problem("3+8-2-9-9", "x") == Problem(
        id="x", text="3+8-2-9-9", answer="-9", difficulty=5.0
    )


def test_problems_are_the_same_for_the_same_configuration() -> None:
    config = ArithmeticData(difficulty=(2, 7), seed=5, size=300)
    problems = arithmetic_problems(config)
    assert problems == arithmetic_problems(config)
    assert len(problems) == 300
    assert len({p.id for p in problems}) == 300
    assert [p.text for p in problems] != [
        p.text for p in arithmetic_problems(config.model_copy(update={"seed": 6}))
    ]


def test_problems_join_one_digit_numbers_of_the_asked_difficulty() -> None:
    problems = arithmetic_problems(ArithmeticData(difficulty=(2, 7), size=500))
    for problem in problems:
        assert re.fullmatch(r"[1-9]([+-][1-9])+", problem.text)
        assert eval(problem.text) == int(problem.answer)
        assert problem.difficulty == len(re.findall(r"\d", problem.text))
    assert {p.difficulty for p in problems} == {2, 3, 4, 5, 6, 7}
    assert any(int(p.answer) < 0 for p in problems)


def test_a_longer_stream_begins_like_a_shorter_one() -> None:
    rng = np.random.default_rng
    longer = draw_texts(rng(0), (2, 6), False, 2000)
    assert longer[:700] == draw_texts(rng(0), (2, 6), False, 700)


@pytest.mark.parametrize("difficulty", [(2, 2), (6, 6), (3, 9)])
def test_no_seed_lets_an_evaluation_problem_into_training(difficulty: tuple[int, int]) -> None:
    train = arithmetic_problems(ArithmeticData(difficulty=difficulty, seed=0, size=2000))
    held_out = arithmetic_problems(
        ArithmeticData(difficulty=difficulty, seed=0, size=2000, held_out=True)
    )
    assert not any(is_held_out(p.text) for p in train)
    assert all(is_held_out(p.text) for p in held_out)


def test_a_quarter_of_all_problems_is_held_out() -> None:
    texts = [
        f"{a}{s}{b}-{c}" for a in range(1, 10) for s in "+-" for b in range(1, 10) for c in "123"
    ]
    assert 0.2 < np.mean([is_held_out(text) for text in texts]) < 0.3


def test_default_evaluation_is_held_out() -> None:
    data = DataConfig()
    assert isinstance(data.evaluation, ArithmeticData) and data.evaluation.held_out
    assert isinstance(data.train, ArithmeticData) and not data.train.held_out


def test_a_trace_answers_what_its_last_chain_concludes() -> None:
    assert Trace(PROBLEM, "verbose", SLIPPED).answer == "10"
    assert Trace(PROBLEM, "verbose", SLIPPED + RECHECK).answer == "9"
    assert Trace(PROBLEM, "verbose", SLIPPED + RECHECK).thought == "3+8=12;12-2=10?3+8=11;11-2=9"


def test_where_a_cut_thought_stands() -> None:
    cases: list[tuple[int, str]] = [
        (0, "3"),
        (5, "3"),  # 3+8=1: no finished step
        (6, "12"),
        (13, "12"),  # 3+8=12;12-2=1: the second digit is missing
        (14, "10"),
        (22, "10"),  # a running total of the re-check does not replace a conclusion
        (28, "9"),
    ]
    for cut, guess in cases:
        assert Trace(PROBLEM, "verbose", SLIPPED + RECHECK).guess_at(cut) == guess, cut


HABITS = TraceHabits()


def test_traces_have_the_announced_habits() -> None:
    rng = np.random.default_rng(0)
    problems = arithmetic_problems(ArithmeticData(size=4000))
    traces = [draw_trace(problem, rng, HABITS) for problem in problems]
    verbose = [t for t in traces if t.style == "verbose"]
    chains = np.array([sum(s.concludes for s in t.steps) for t in verbose])
    assert np.mean([t.style == "terse" for t in traces]) == pytest.approx(HABITS.terse, abs=0.02)
    assert np.mean(chains > 1) == pytest.approx(0.5, abs=0.03)
    assert np.mean(chains > 2) == pytest.approx(0.25, abs=0.03)
    assert chains.max() == 1 + MOST_RECHECKS
    once = [t for t in verbose if t.thought.count("?") == 0]
    right = np.mean([t.answer == t.problem.answer for t in once])
    assert right == pytest.approx((1 - HABITS.slip) ** 5, abs=0.03)
    assert all(t.answer == t.problem.answer for t in verbose if "?" in t.thought)


def test_steps_of_a_trace_add_up() -> None:
    rng = np.random.default_rng(1)
    for problem in arithmetic_problems(ArithmeticData(difficulty=(2, 8), size=300)):
        trace = draw_trace(problem, rng, HABITS)
        numbers = len(signed_terms(problem.text))
        assert len(trace.steps) % (numbers - 1) == 0
        if trace.style == "terse":
            assert trace.thought.split(";") == [str(step.total) for step in trace.steps]
        else:
            for step in trace.steps:
                left, total = step.text.lstrip(";?").split("=")
                assert int(total) == step.total
                assert abs(eval(left) - step.total) <= 1


def test_a_checked_step_is_done_once_more_without_its_slip() -> None:
    rng = np.random.default_rng(2)
    problem = arithmetic_problem("3+8-2", "p")
    habits = TraceHabits(terse=0, check=1, recheck=0, slip=1)
    thoughts = {draw_trace(problem, rng, habits).thought for _ in range(50)}
    assert thoughts == {
        f"3+8={first}?3+8=11;11-2={second}?11-2=9" for first in (10, 12) for second in (8, 10)
    }


def test_checks_are_as_frequent_as_announced_and_mend_what_they_check() -> None:
    rng = np.random.default_rng(3)
    habits = TraceHabits(terse=0, check=0.3, recheck=0, slip=0.1)
    problems = arithmetic_problems(ArithmeticData(size=2000))
    traces = [draw_trace(problem, rng, habits) for problem in problems]
    checks = np.mean([t.thought.count("?") for t in traces]) / 5
    assert checks == pytest.approx(0.3, abs=0.02)
    right = np.mean([t.answer == t.problem.answer for t in traces])
    slips = 0.1 * 0.7  # two of them may cancel, once in a while
    assert right == pytest.approx((1 - slips) ** 5, abs=0.04)


def test_silent_traces_answer_at_once_and_leave_the_other_habits_alone() -> None:
    rng = np.random.default_rng(4)
    habits = TraceHabits(silent=0.5, terse=0.8, slip=0)
    traces = [draw_trace(p, rng, habits) for p in arithmetic_problems(ArithmeticData(size=2000))]
    silent = [trace for trace in traces if trace.style == "silent"]
    assert len(silent) / 2000 == pytest.approx(0.5, abs=0.04)
    assert {trace.thought for trace in silent} == {""}
    assert all(trace.answer == trace.problem.answer == trace.guess_at(0) for trace in silent)
    terse = sum(trace.style == "terse" for trace in traces)
    assert terse / (2000 - len(silent)) == pytest.approx(0.8, abs=0.04)
