"""Expressions as answers: what is right, what is wrong, and that no text does harm."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.grading import GradingActor
from rlsys.config import GradingConfig
from rlsys.errors import DataError
from rlsys.grading.compare import decide
from rlsys.grading.countdown import (
    MAX_CHARACTERS,
    MAX_DEPTH,
    CountdownGold,
    Operation,
    check_countdown_gold,
    countdown_gold,
    leaves,
    parse_expression,
    solves,
    value,
)
from rlsys.types import GradingRequest, Verdict

RIGHT = [
    ("19,35,44->98", "(44+35)+19"),
    ("19,35,44->98", "19+35+44"),
    ("19,35,44->98", " ( 19 + 35 ) + 44 "),
    ("19,35,44->98", "((((19))))+35+44"),
    ("3,8,8,3->24", "8/(3-8/3)"),  # a fraction on the way
    ("2,3,5->4", "(2-3)+5"),  # a negative number on the way
    ("2,3,5->13", "2*5+3"),
    ("2,3,5->13", "3+2*5"),
    ("2,3,5->13", r"2 \times 5 + 3"),
    ("2,3,5->13", r"2\cdot5+3"),
    ("4,2,3->6", r"4 \div 2 * 3"),
    ("8,4,2->1", "8/4/2"),  # from the left
    ("8,4,2->2", "8-4-2"),
    ("5,5->25", "5*5"),  # both fives are given
    ("7->7", "7"),
]
WRONG = [
    ("19,35,44->98", "(44+35)+20"),  # 20 is not given
    ("19,35,44->98", "19+35+44+0"),
    ("19,35,44->98", "98"),
    ("19,35,44->98", "19+35+45"),
    ("19,35,44->98", "44+35+19=98"),
    ("2,3,5->10", "2*5"),  # 3 is left out
    ("2,3,5->10", "5*2*(3-2)"),  # 2 twice, 5 once: not once each
    ("5,2,3->10", "5+5"),
    ("3,4->34", "34"),  # digits are not joined
    ("2,3,5->12", "2*5+3"),
    ("2,3,5->4", "-3+2+5"),  # no sign in front of a number
    ("2,3,5->4", "+2+5-3"),
    ("2,3,5->4", "02+5-3"),
    ("2,3,5->4", "2.0+5-3"),
    ("2,3->8", "2**3"),
    ("2,3->8", "2^3"),
    ("2,3->0", "2//3"),
    ("2,3->6", "2(3)"),
    ("2,3->6", "2x3"),
    ("2,3->6", "2 3"),
    ("3,3,2->2", "2/(3-3)"),  # division by zero
    ("3,3,2->2", "2*3/3-"),
    ("2,3->5", "2+3)"),
    ("2,3->5", "(2+3"),
    ("2,3->5", "()2+3"),
    ("2,3->5", "2++3"),
    ("2,3->5", "2+3;import os"),
    ("2,3->5", "__import__('os')"),
    ("2,3->5", "2+3\n"),
    ("2,3->5", ""),
    ("2,3->5", "   "),
    ("2,3->5", "+"),
    ("2,3->5", "２+３"),  # full-width digits
    ("2,3->5", "٢+٣"),  # Arabic digits
    ("2,3->5", "2＋3"),
    ("2,3->6", "2×3"),
    ("2,3->5", "2+³"),
    ("2,3->5", "2\x00+3"),
    ("2,3->5", "2+3\ud800"),
    ("2,3->5", "9" * 5000 + "+2"),
    ("2,3->5", "9*" * 120 + "9"),
    ("2,3->5", "(" * 10_000 + "2+3" + ")" * 10_000),
    ("2,3->5", "(" * (MAX_DEPTH + 1) + "2+3" + ")" * (MAX_DEPTH + 1)),
    ("2,3->5", "(" * MAX_CHARACTERS),
    ("2,3->5", "2+3" + " " * MAX_CHARACTERS),
]


def test_what_is_right_and_what_is_wrong() -> None:
    verdicts = {(gold, answer): solves(answer, gold) for gold, answer in RIGHT + WRONG}
    assert [case for case in RIGHT if not verdicts[case]] == []
    assert [case for case in WRONG if verdicts[case]] == []


def test_the_policy_decides_at_once() -> None:
    gold = "2,3,5->13"
    assert decide("2*5+3", gold, policy="countdown") is Verdict.RIGHT
    assert decide("13", gold, policy="countdown") is Verdict.WRONG
    assert decide(None, gold, policy="countdown") is Verdict.WRONG
    assert decide("(" * 10_000, gold, policy="countdown") is Verdict.INVALID  # as every policy
    assert decide("2*5+3", gold) is not Verdict.RIGHT  # the default policy compares values


def test_the_grading_actor_follows_the_policy() -> None:
    actor = GradingActor(GradingConfig(policy="countdown"))
    requests = [
        GradingRequest("2*5 </think>\n\n**Final Answer**\n\\boxed{2*5+3}", "2,3,5->13"),
        GradingRequest("2*5+3 </think>\n\n**Final Answer**\n\\boxed{2*5}", "2,3,5->13"),
        GradingRequest("\\boxed{2*5+3} </think> none", "2,3,5->13"),
        GradingRequest("\\boxed{" + "(" * 1000, "2,3,5->13"),
    ]
    right, wrong = Verdict.RIGHT, Verdict.WRONG
    assert actor.grade(requests) == [right, wrong, wrong, wrong]


def test_gold_texts() -> None:
    assert countdown_gold("35,19,44->98") == CountdownGold((19, 35, 44), 98)
    for text in ("", "98", "35,19", "35,19->", "->98", "35;19->98", "35,19->98 ", "0,1->1"):
        assert countdown_gold(text) is None, text
        assert not solves("98", text)
        with pytest.raises(DataError, match=r"'p1' .*'19,35,44->98'"):
            check_countdown_gold("p1", text)
    check_countdown_gold("p1", "35,19,44->98")


def test_trees() -> None:
    assert parse_expression("1-2*3") == Operation("-", 1, Operation("*", 2, 3))
    assert parse_expression("(1-2)*3") == Operation("*", Operation("-", 1, 2), 3)


@st.composite
def expressions(draw: st.DrawFn, depth: int = 4) -> str:
    if depth == 0 or draw(st.booleans()):
        return str(draw(st.integers(1, 99)))
    sign = draw(st.sampled_from("+-*/"))
    text = f"{draw(expressions(depth - 1))}{sign}{draw(expressions(depth - 1))}"
    return f"({text})" if draw(st.booleans()) else text


@given(expressions())
def test_values_are_those_of_python(text: str) -> None:
    tree = parse_expression(text)
    assert tree is not None or len(text) > MAX_CHARACTERS
    if tree is None:
        return
    numbers = {f"n{n}": Fraction(n) for n in leaves(tree)}
    spelled = "".join(f"n{part}" if part.isdigit() else part for part in _parts(text))
    try:
        expected = eval(spelled, numbers)
    except ZeroDivisionError:
        expected = None
    assert value(tree) == expected


def _parts(text: str) -> list[str]:
    for sign in "+-*/()":
        text = text.replace(sign, f" {sign} ")
    return text.split()


@given(st.text(max_size=300))
def test_any_text_is_graded(text: str) -> None:
    assert solves(text, "2,3->5") in (True, False)


@given(st.text(alphabet="0123456789+-*/() ", max_size=300))
def test_any_text_of_the_right_characters_is_graded(text: str) -> None:
    assert solves(text, "2,3->5") in (True, False)
