"""The verdict table, the fast and the hard path, and the texts that must not do harm."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlsys.grading.compare import CachedGrader, decide, grade, is_correct, self_test
from rlsys.types import GradingRequest, Verdict


@pytest.mark.parametrize(
    ("response", "gold"),
    [
        (r"\boxed{42.0}", "42"),
        (r"\boxed{x+1}", "1+x"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\frac12}", "0.5"),
        (r"\boxed{1/2}", "0.5"),
        (r"\boxed{1,000}", "1000"),
        (r"\boxed{\$12}", "12"),
        (r"\boxed{12 cm}", "12"),
        (r"\boxed{12\text{ cm}}", "12"),
        (r"\boxed{18}", r"18\text{ hours}"),
        (r"\boxed{x=5}", "5"),
        (r"\boxed{2x}", "2*x"),
        (r"\boxed{x**2}", "x^2"),
        (r"\boxed{\text{A}}", "A"),
        (r"\boxed{C}", r"\text{(C)}"),
        (r"\boxed{Even}", r"\text{even}"),
        (r"\boxed{2\sqrt{3}}", r"2\sqrt{3}"),
        (r"\boxed{2 \sqrt{3}}", r"\sqrt{12}"),
        (r"\boxed{240}", "The answer is: 240"),
        (r"\boxed{240}", "48 / 2 = 24\n#### 240"),
        (r"\boxed{240}", r"so it is $\boxed{240}$."),
        (r"\boxed{1} ... \boxed{2}", "2"),
        (r"\boxed{\{2, 1\}}", r"\{1,2\}"),
        (r"\boxed{[0, 1)}", "[0,1)"),
        (r"\boxed{50\%}", "0.5"),
        (r"\boxed{3\times 10^5}", "300000"),
        (r"\boxed{3+4=7}", "7"),
        (r"\boxed{0.333333}", r"\frac{1}{3}"),
        (r"\boxed{(073)}", "73"),
        (r"\boxed{90^\circ}", "90"),
    ],
)
def test_right(response: str, gold: str) -> None:
    assert is_correct(response, gold)


@pytest.mark.parametrize(
    ("response", "gold"),
    [
        (r"\boxed{\frac{1}{7}}", r"solution \boxed{\frac{1}{2}}"),
        ("the answer is\n7", "7"),
        (r"\boxed{}", ""),
        (r"\boxed{ }", "5"),
        ("", ""),
        (r"\boxed{5}", ""),
        (r"\boxed{1} ... \boxed{2}", "1"),
        (r"\boxed{(1,2]}", "[1,2]"),
        (r"\boxed{0.33}", r"\frac{1}{3}"),
        (r"\boxed{41}", "42"),
        (r"\boxed{42.0000001}", "42"),
        (r"\boxed{5 or 6}", "5"),
        (r"\boxed{nelvyE}", "Evelyn"),
        (r"\boxed{no}", r"\text{Yes}"),
        (r"\boxed{1/0}", "1"),
    ],
)
def test_wrong(response: str, gold: str) -> None:
    assert grade(GradingRequest(response, gold)) is Verdict.WRONG


def test_work_left_undone_is_no_number() -> None:
    assert not is_correct(r"\boxed{3+8-2}", "9")
    assert not is_correct(r"\boxed{x = 3 \cdot 3}", "9")
    assert is_correct(r"\boxed{2+\sqrt{3}}", r"\sqrt{3}+2")


@pytest.mark.parametrize(
    "answer",
    [
        "9**9**9",
        "9^{(9)^{(9)}}",
        "((9^{999})^{999})",
        "9999999!",
        "((9!)!)!",
        "__import__('os').getpid()",
        "{" * 3_000_000 + "}" * 3_000_000,
        "(" * 2000 + ")" * 2000,
        r"\boxed{" * 400_000,
        "\x00\x1b[2J5",
        "^" * 4000,
        "9^" * 2000,
        "\ud800",
    ],
)
def test_hostile_texts_are_wrong_at_once(answer: str) -> None:
    assert self_test() == []  # the processes are up
    start = time.monotonic()
    assert not is_correct(rf"\boxed{{{answer}}}", "5")
    assert time.monotonic() - start < 1.0


def test_model_text_is_never_evaluated(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    code = f"__import__('pathlib').Path('{mark}').touch()"
    for text in (code, rf"\text{{{code}}}", f"2*{code}", f"${code}$"):
        assert not is_correct(rf"\boxed{{{text}}}", "x")
    assert not mark.exists()


def test_too_long_is_invalid_not_wrong() -> None:
    assert decide("1" * 11, "5", max_characters=10) is Verdict.INVALID
    assert decide("1" * 10, "5", max_characters=10) is Verdict.WRONG
    assert decide("1" * 11, "5", max_characters=10, policy="math-verify") is Verdict.INVALID


def test_works_off_the_main_thread() -> None:
    results: list[bool] = []
    threads = [
        threading.Thread(target=lambda: results.append(is_correct(r"\boxed{y+x}", "x + y")))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 4


def test_works_in_a_script_without_a_main_guard_and_ends_with_it() -> None:
    script = r"from rlsys.data.grading import is_correct; print(is_correct(r'\boxed{x+1}', '1+x'))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "True\n"
    assert done.stderr == ""


def test_self_test_passes_and_tells_what_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert self_test() == []
    monkeypatch.setattr("rlsys.grading.compare.is_correct", lambda response, gold: True)
    assert len(self_test()) == 4


@given(st.integers(), st.integers(-3, 3))
def test_integers_are_compared_exactly(value: int, offset: int) -> None:
    verdict = decide(f"{value:,}.0", str(value + offset))
    assert verdict is (Verdict.RIGHT if offset == 0 else Verdict.WRONG)


@given(st.text(), st.text(min_size=1))
def test_deciding_never_raises(answer: str, gold: str) -> None:
    decide(answer, gold)


def test_repeated_fragments_are_decided_soon() -> None:
    fragments = (
        "%",
        "°",
        " ",
        "~",
        r"\text{a}",
        "(1)",
        "1,",
        r"\pm ",
        "1=",
        "x<",
        "1 and ",
        "[",
        "**",
    )
    for fragment in fragments:
        for gold in ("5", "x+1", "(1,2)", r"90^\circ"):
            start = time.monotonic()
            decide("1" + (fragment * 1000)[:1010] + ";x", gold)
            assert time.monotonic() - start < 1.0, fragment


def test_easy_answers_are_fast() -> None:
    responses = [rf"thought </think> **Final Answer** \boxed{{{i}}}" for i in range(4000)]
    start = time.monotonic()
    assert all(is_correct(response, str(i)) for i, response in enumerate(responses))
    assert time.monotonic() - start < 4.0


async def _grade_twice(asked: list[list[GradingRequest]]) -> list[list[Verdict]]:
    async def grade_hard(requests: list[GradingRequest]) -> list[Verdict]:
        asked.append(requests)
        return [Verdict.RIGHT if "y" in r.response else Verdict.INVALID for r in requests]

    grader = CachedGrader(grade_hard)
    requests = [
        GradingRequest(r"\boxed{7}", "7"),
        GradingRequest(r"first \boxed{x+y}", "y+x"),
        GradingRequest("no box", "7"),
        GradingRequest(r"second \boxed{x+y}", "y+x"),
        GradingRequest(r"\boxed{x+z}", "z+x"),
    ]
    return [await grader.grade(requests), await grader.grade(requests)]


def test_cached_grader_asks_once_per_answer_and_gold() -> None:
    import asyncio

    asked: list[list[GradingRequest]] = []
    first, second = asyncio.run(_grade_twice(asked))
    right, wrong, invalid = Verdict.RIGHT, Verdict.WRONG, Verdict.INVALID
    assert first == second == [right, right, wrong, right, invalid]
    assert asked == [[GradingRequest(r"\boxed{x+y}", "y+x"), GradingRequest(r"\boxed{x+z}", "z+x")]]


def test_cached_grader_forgets_the_oldest() -> None:
    import asyncio

    asked: list[str] = []

    async def grade_hard(requests: list[GradingRequest]) -> list[Verdict]:
        asked.extend(r.response for r in requests)
        return [Verdict.WRONG] * len(requests)

    async def run() -> None:
        grader = CachedGrader(grade_hard, capacity=1)
        for answer in ("a+b", "a+c", "a+b"):
            await grader.grade([GradingRequest(rf"\boxed{{{answer}}}", "a")])

    asyncio.run(run())
    assert asked == [r"\boxed{a+b}", r"\boxed{a+c}", r"\boxed{a+b}"]
