"""Extraction and normal form, on literal texts."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlsys.grading.answers import clean_gold, extract_answer
from rlsys.grading.exact import as_number
from rlsys.grading.refusals import is_refused, is_unfinished
from rlsys.grading.spelling import normalise


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{7}", "7"),
        (r"\fbox{7}", "7"),
        (r"\boxed {7}", "7"),
        (r"\boxed{1} then \boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\boxed{\left\{ x \right.}", r"\left\{ x \right."),
        (r"\boxed{\boxed{5} cm}", "5"),
        (r"\boxed{}", ""),
        ("the answer is 7", None),
        (r"\boxed 7", None),
        (r"\boxed{1} then \boxed{2", None),
        ("", None),
        # Only what follows the thought counts.
        (r"<think>\boxed{1}</think>\boxed{2}", "2"),
        (r"<think>\boxed{1}</think>2", None),
        # The first paragraph under the header, up to its blank line.
        ("</think>\n\n**Final Answer**\n\\boxed{1}", "1"),
        ("**Final Answer**\n\\boxed{1} then \\boxed{2}\n\nno: \\boxed{3}", "2"),
        ("**Final Answer**\n\\boxed{1}\n\n**Final Answer**\n\\boxed{2}", "1"),
        ("so \\boxed{1}\n\n**Final Answer**\nseven", None),
        # The paragraph of the first box, wherever it begins.
        ("**Final Answer**\n\n\\boxed{1}", "1"),
        ("**Final Answer**\n \t\n\\boxed{1}\n\n\\boxed{2}", "1"),
        ("**Final Answer**\n$$\n\n\\boxed{4}\n$$\n\ncheck: \\boxed{5}", "4"),
        ("**Final Answer**\n\nSo it is\n\n\\boxed{8}", "8"),
        ("**Final Answer**\n\n", None),
        ("**Final Answer:** \\boxed{6}\n\nPerhaps \\boxed{7}", "6"),
        ("### Final Answer\n\\boxed{6}\n\nPerhaps \\boxed{7}", "6"),
        # The model repeats the header, or the header and the box, that the environment opened.
        ("**Final Answer**\n\n\n**Final Answer**\n\\boxed{5}", "5"),
        ("**Final Answer**\n\\boxed{**Final Answer**\n\n\\boxed{5}", "5"),
        ("**Final Answer**\n\\boxed{9}", "9"),
        ("**Final Answer**\n\\boxed{9", None),
        # Several boxes that are the values of one answer.
        (r"either \boxed{4} or \boxed{7}", "4, 7"),
        (r"$x = \boxed{4}$ and $y = \boxed{7}$.", "4, 7"),
        (r"\boxed{1}, \boxed{2}, and \boxed{3}", "1, 2, 3"),
        (r"\boxed{4} and \boxed{4}", "4"),
        (r"not \boxed{4}, but rather \boxed{7}", "7"),
        (r"\boxed{4} \boxed{}", ""),
        (r"\boxed{4} or \boxed{", None),
        # A header that is no line of its own is text.
        (r"**Final Answer**: \boxed{3}", "3"),
        ("well **Final Answer**\n\\boxed{3}\n\n\\boxed{4}", "4"),
        # The thought's own header does not count.
        ("**Final Answer**\n\\boxed{1}\n\n</think>\n\n**Final Answer**\n\\boxed{2}", "2"),
    ],
)
def test_extract_answer(text: str, answer: str | None) -> None:
    assert extract_answer(text) == answer


_balanced = st.recursive(
    st.text(alphabet="x1+ ^\n"), lambda inner: inner.map(lambda text: f"\\frac{{{text}}}{{2}}")
)


@given(st.text(alphabet="}{x\\ ").map(lambda text: text + " "), _balanced)
def test_extraction_returns_what_was_boxed(before: str, content: str) -> None:
    assert extract_answer(f"{before}\\boxed{{{content}}} and so on }}") == content.strip()


@pytest.mark.parametrize(
    ("text", "gold"),
    [
        ("240", "240"),
        (" 240. ", "240"),
        ("#### 240", "240"),
        ("8 * 30 = 240\n#### 240\nThe answer is: 240", "240"),
        ("The answer is: 240", "240"),
        ("The answer is 240.", "240"),
        (r"thus $\boxed{240}$", "240"),
        ("$240$", "240"),
        ("$1$, $2$", "$1$, $2$"),
        (r"\$12", r"\$12"),
        ("####", ""),
        (r"\boxed{}", ""),
        ("  ", ""),
        (r"= \boxed{7.5e2} \mathrm{~K}$", "7.5e2"),
        ("$12$solution: as above", "12"),
    ],
)
def test_clean_gold(text: str, gold: str) -> None:
    assert clean_gold(text) == gold


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        (r"\dfrac{1}{2}", r"\frac{1}{2}"),
        (r"\left( 1, 2 \right)", "(1,2)"),
        (r"12\,345", "12345"),
        ("1{,}000", "1,000"),
        (r"\text{ A }", "A"),
        ("x ** 2", "x^2"),
        ("\N{MINUS SIGN} 5", "-5"),
        (r"\$12.", "12"),
        (r"\sin x", r"\sin x"),
        ("1 2", "1 2"),
    ],
)
def test_normalise(text: str, normal: str) -> None:
    assert normalise(text) == normal


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("42", Fraction(42)),
        ("-1,234.50", Fraction(-2469, 2)),
        ("+.5", Fraction(1, 2)),
        ("5.", Fraction(5)),
        ("007", Fraction(7)),
        ("-3/6", Fraction(-1, 2)),
        (r"-\frac{1}{2}", Fraction(-1, 2)),
        (r"\frac{-1}{2}", Fraction(-1, 2)),
        (r"\frac12", Fraction(1, 2)),
        (r"3\frac{1}{4}", Fraction(13, 4)),
        ("-3 1/4", Fraction(-13, 4)),
        ("45 000.5", Fraction(90001, 2)),
        ("6.2e-3", Fraction(62, 10_000)),
        (r"6.2 \times 10^{-3}", Fraction(62, 10_000)),
        (r"-7\cdot10^4", Fraction(-70_000)),
        ("10^{-5}", Fraction(1, 100_000)),
        ("\N{FULLWIDTH DIGIT FOUR}\N{FULLWIDTH DIGIT TWO}", Fraction(42)),
        ("40\\%", Fraction(40)),
    ],
)
def test_numbers(text: str, value: Fraction) -> None:
    number = as_number(normalise(text))
    assert number is not None
    assert number.value == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "-",
        "12,34",
        "1 2",
        "1, 234",
        "(1,234)",
        "1/0",
        "18e",
        "2e^3",
        "x",
        "4" * 5000,
        r"2\frac{5}{4}",
        "--1",
        "9e99999",
        "1.2.3",
    ],
)
def test_not_numbers(text: str) -> None:
    assert as_number(normalise(text)) is None


@pytest.mark.parametrize("text", ["3+8-2", r"3 \cdot 4", "x=3+4", r"\frac{1+2}{3}", "(3)*(4)"])
def test_unfinished(text: str) -> None:
    assert is_unfinished(text)


@pytest.mark.parametrize(
    "text", ["-5", r"6.02 \times 10^{23}", "1.5*10^3", r"2\sqrt{3}", "3+4=7", "2^{10}", "1e-5"]
)
def test_finished(text: str) -> None:
    assert not is_unfinished(text)


@pytest.mark.parametrize(
    "text",
    ["9^9^9", "(9^9)^9", "x^{9^{9^9}}", "9^{99999}", "2^{-2^{2001}}", "2501!", "3!!", "(9^9)!"],
)
def test_refused(text: str) -> None:
    assert is_refused(text)


@pytest.mark.parametrize(
    "text",
    ["2^{2021}", "1999^{1999}", "2^{2^3}", "2^{2^n}", "e^{-x^2/2}", "100!", "(n-1)!", "(x!)^k"],
)
def test_not_refused(text: str) -> None:
    assert not is_refused(text)
