r"""Every kind of answer: golds with right and with wrong answers, and the cases kept elsewhere."""

import json
import os
from pathlib import Path

import pytest

from rlsys.grading.compare import decide, grade, is_correct
from rlsys.grading.golds import gold_text, read_gold
from rlsys.types import GradingRequest, Verdict

KINDS = {
    # kind: (gold, right answers, wrong answers), ...
    "scientific": [
        ("4e5", [r"4\times 10^5", r"4 \cdot 10^{5}", "400,000", "4E5", "4*10^5"], ["4e6", "20e"]),
        ("2.5e-7", [r"2.5 × 10^{-7}\text{ m}", "0.00000025"], ["2.5e-8", "2.6e-7", "0"]),
        (r"\boxed{1e9} \mathrm{~Hz}", ["10^9", r"10^{9}\,\text{Hz}"], ["10^8", "1e"]),
    ],
    "tiny and huge": [
        (r"\frac{1}{3^{80}}", ["3^{-80}", r"\frac{1}{9^{40}}"], [r"\frac{1}{3^{81}}"]),
        (r"\frac{1}{900!}", [r"\frac{1}{900\cdot 899!}"], [r"\frac{1}{901!}"]),
        ("5^{400}", [r"5\cdot 5^{399}", "25^{200}"], ["5^{401}", "5^{400}+1"]),
    ],
    "mixed": [
        (r"3\frac{1}{8}", ["25/8", "3.125", "3 1/8", r"\frac{25}{8}"], [r"\frac38", "31/8"]),
        ("7/2", [r"3\tfrac12", "3 1/2"], ["31/2", "3 1/3"]),
    ],
    "thousands": [
        ("#### 48,250", ["48250", r"48\,250", "48{,}250", "48 250", "48250.0"], ["48,520", "48"]),
        ("2, 345", ["345, 2"], ["2345", "2,345"]),
    ],
    "percent": [
        (r"35\%", ["0.35", "35", r"35\text{ percent}", r"\frac{7}{20}"], ["3.5", r"3.5\%"]),
        ("12.5", [r"12.5\%"], [r"1.25\%"]),
    ],
    "units": [
        (
            "15",
            [r"15\text{ cm}^2", r"15\,\mathrm{km/h}", "15 apples", r"15\text{元}"],
            ["15x", "51"],
        ),
        (r"20\text{ cm}", ["20", "20 cm", r"20\text{ centimeters}"], [r"20\text{ m}", "20 m"]),
        (r"81\pi\;m^{2}", [r"81\pi", r"81\pi\text{ m}^2"], [r"18\pi", r"81\pi\text{ cm}^2"]),
        ("5n", ["5 n"], ["5", "n"]),
        ("4m", ["4 m"], ["4"]),
        (r"700\text{ angstroms}", [r"700\text{ Å}", "700"], ["70"]),
        ("9", [r"9\ \frac{\text{m}}{\text{s}}"], [r"9 \text{ or } 8"]),
    ],
    "angles": [
        (r"45^{\circ}", ["45", "45°", r"45\text{ degrees}", r"\frac{\pi}{4}"], [r"\frac{\pi}{3}"]),
        (r"\frac{\pi}{6}", [r"30^\circ"], ["30", r"60^\circ"]),
        (r"(30^\circ, 50^\circ)", ["(30, 50)"], ["(50, 30)"]),
    ],
    "characters": [
        (
            "58",
            ["\uff15\uff18", "`58`", "58,", "58;", r"\textcolor{red}{58}", r"\mathbf{58}"],
            ["5"],
        ),
        ("58", [r"\text{The answer is } 58", '"58"', r"\displaystyle 58", "**58**"], ["58?9"]),
        ("①②", ["(1)(2)", "①、②", r"\textcircled{1}\textcircled{2}"], ["①③", "①"]),
        ("2+3i", [r"2+3\mathrm{i}", "3i+2"], ["2-3i"]),
        (r"\frac{2}{e}", [r"2/\mathrm{e}", "2e^{-1}"], [r"\frac{2}{3}"]),
    ],
    "intervals": [
        (
            r"(1,4]",
            ["1<x\\le 4", "]1,4]", r"\{x \mid 1 < x \leq 4\}", r"x\in(1,4]"],
            ["[1,4]", "1<x<4"],
        ),
        ("x > 7", [r"(7, \infty)", "7<x", r"(7,+\infty)"], [r"[7,\infty)", "x<7", "y>7"]),
        (
            r"(-\infty,1)\cup(5,\infty)",
            [r"x<1 \text{ or } x>5", r"(5,\infty)\cup(-\infty,1)", "x<1, x>5"],
            [r"(-\infty,1]\cup(5,\infty)", "1<x<5"],
        ),
        ("c<b<a", ["a>b>c"], ["a<b<c", "a>c>b"]),
        ("x<3", ["2x<6"], ["2x>6", r"x\le 3"]),
        (r"x \ne 2", [r"(-\infty,2)\cup(2,\infty)"], [r"(-\infty,2)"]),
        ("(-\\infty,\\infty)", [r"\mathbb{R}", r"\text{all real numbers}"], [r"(0,\infty)"]),
    ],
    "lists": [
        ("4, 9, 11", [r"\{11, 9, 4\}", "9; 4; 11", r"4, 9 \text{ and } 11"], ["4, 9", "4, 9, 12"]),
        ("3,8", [r"x=3 \text{ or } x=8", "x = 8, 3"], ["3", "38"]),
        ("(1,5),(5,1)", ["(5,1), (1,5)", r"\{(1,5),(5,1)\}"], ["(1,5)", "(1,5),(1,5)"]),
        (
            "(2,1),(2,-1),(-2,1),(-2,-1)",
            [r"(\pm 2, \pm 1)"],
            [r"(\pm 2, 1)", r"\pm(2,1)"],
        ),
        (r"\pm 6", ["6, -6", r"\{-6, 6\}"], ["6", "-6"]),
        (r"4 \pm \sqrt{7}", [r"4-\sqrt7, 4+\sqrt7"], [r"4+\sqrt7"]),
        ("(2,7)", ["x=2, y=7", "(2, 7)"], ["(7,2)", r"\{2,7\}"]),
        ("1, 4, \\ldots, n^2", ["1,4,\\ldots,n^2"], ["1, 4, 9"]),
        ("[0, 1)", ["[0,1)"], ["(0,1)", "0"]),
    ],
    "words": [
        (
            "does not exist",
            [r"\text{DNE}", "The limit does not exist.", "diverges"],
            ["0", r"\infty"],
        ),
        (r"\text{diverges}", ["divergent", r"\text{The series diverges}"], ["converges"]),
        (r"\infty", ["infinity", r"+\infty", r"\text{infinite}"], [r"-\infty", "0"]),
        ("a red square", [r"\text{A red square.}", "red square"], ["a square", "square red"]),
        ("no solution", [r"\emptyset", r"\text{none}"], ["0"]),
        ("6:15 pm", ["6:15 p.m.", "6:15pm"], ["6:15 am", "6:15"]),
        ("\u5de6\u8fb9", [r"\text{左边。}"], ["\u53f3\u8fb9"]),
        (r"\text{Evelyn}", ["evelyn", "Evelyn."], ["Everlyn", r"\text{not Evelyn}"]),
    ],
    "choices": [
        ("D", ["(D)", "D.", r"\textbf{(D)}\ 25", r"\text{Option D}"], ["C", "25", r"\text{(A)}"]),
        ("A. (2,5)", ["A", "(2,5)"], ["B", "(2,6)"]),
        (r"\textbf{(E)}\ 31", ["E", "31", "(E)"], ["A", "30"]),
        ("BCD", ["B, C, D", r"\text{B, C and D}"], ["BC", "B"]),
    ],
    "equations": [
        ("y = 4x - 1", ["4x-1", "y=-1+4x", "4x-y-1=0"], ["y=4x+1", "4x+1"]),
        ("f(x)=x^2", ["x^2", "f(x)=x^{2}"], ["f(x)=x^3", "g(x)=x^2"]),
        ("x=6", ["6", "6.0"], ["y=6", "x=7"]),
        (r"\frac{x^2}{3}-y^2=1", ["x^2-3y^2=3"], ["x^2-3y^2=1"]),
        ("2:7", ["2/7", "4:14"], ["7:2"]),
    ],
    "expressions": [
        (r"2\ln x", [r"\ln x^2", r"\ln x+\ln x"], [r"\ln(2x)"]),
        (r"\frac{\ln|x|}{2}+C", [r"\ln\sqrt{|x|}+K", r"\frac12\ln|3x|+c"], [r"\frac{\ln|x|}{2}"]),
        (r"x^3+C", ["x^3+c"], ["x^3", "x^2+C", "x^3+x+C"]),
        (r"2\sin t\cos t", [r"\sin(2t)", r"\sin 2t"], [r"\cos 2t"]),
        ("M+1", ["1+M"], ["m+1"]),
        ("6", [], ["2(3)", "(2)(3)", r"2\cdot 3"]),
        (r"\binom{n}{2}", [r"\frac{n(n-1)}{2}"], [r"\frac{n(n+1)}{2}"]),
        (r"m(\gamma^2-1)", [r"m\gamma^2-m"], [r"m\gamma^2+m"]),
        ("|x|", [r"\sqrt{x^2}"], ["x"]),
    ],
    "rounding": [
        ("2.236", [r"\sqrt5\approx 2.236"], [r"\sqrt5", r"\sqrt5\approx 2.24"]),
        (r"\sqrt5", [r"\sqrt5\approx 2.236", "2.2360680"], ["2.236", "2.24"]),
        (r"\frac{2}{3}", ["0.666667", "0.66666666667"], ["0.67", "0.6666"]),
        ("66.7", [], [r"\frac{200}{3}", "66.67"]),
    ],
    "bases": [("34_5", ["34_{5}"], ["34", "34_6", "19"])],
}


@pytest.mark.parametrize("kind", KINDS)
def test_kind(kind: str) -> None:
    misjudged = [
        (gold, answer, verdict.name)
        for gold, right, wrong in KINDS[kind]
        for answers, expected in ((right, Verdict.RIGHT), (wrong, Verdict.WRONG))
        for answer in answers
        if (verdict := grade(GradingRequest(rf"\boxed{{{answer}}}", gold))) is not expected
    ]
    assert misjudged == []


def test_several_golds_are_alternatives() -> None:
    golds = ["3e4", r"3 \times 10^{4}\text{ J}", "none"]
    assert is_correct(r"\boxed{30000}", golds)
    assert is_correct(r"\boxed{30000}", json.dumps(golds))
    assert not is_correct(r"\boxed{3000}", golds)
    assert read_gold(gold_text(golds)).answers == tuple(golds)


def test_a_gold_may_have_a_tolerance() -> None:
    gold = gold_text("4.2", tolerance="1e-1")
    verdicts = {text: decide(text, gold) for text in ("4.3", "4.15", r"4.3\%", "4.31")}
    right, wrong = Verdict.RIGHT, Verdict.WRONG
    assert verdicts == {"4.3": right, "4.15": right, r"4.3\%": right, "4.31": wrong}
    assert grade(GradingRequest(r"\boxed{\sqrt{18}}", gold)) is right  # 4.243
    assert grade(GradingRequest(r"\boxed{\sqrt{19}}", gold)) is wrong


def test_policies() -> None:
    for text, gold, expected in (
        ("0.50", r"\frac{1}{2}", Verdict.RIGHT),
        (r"1\text{ cm}", "1", Verdict.WRONG),
        ("1+x", "x+1", Verdict.WRONG),
    ):
        assert decide(text, gold, policy="exact") is expected
    assert decide("7", "7", policy="math-verify") is None
    assert decide("9^{9^9}", "7", policy="math-verify") is Verdict.WRONG


def _shared_rows() -> Path:
    beside = Path(__file__).parents[2].parent / "shared" / "cases"
    return Path(os.environ.get("RLSYS_CASES", beside)) / "grading" / "rows.jsonl"


@pytest.mark.skipif(not _shared_rows().exists(), reason="RLSYS_CASES names no folder of cases")
def test_shared_cases() -> None:
    rows = [json.loads(line) for line in _shared_rows().read_text("utf-8").splitlines()]
    misjudged = [
        row
        for row in rows
        if is_correct(row["response"], row["gold"]) != (row["expected"] == "right")
    ]
    assert len(misjudged) <= 5, misjudged
