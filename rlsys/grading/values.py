r"""Are two single values equal? Names, units, angles, numbers, ratios; the rest is for algebra.

Values are `tidy` text (rlsys.grading.spelling), the leaves of rlsys.grading.structures.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

from rlsys.grading.exact import as_number, same_number
from rlsys.grading.phrases import synonym_group
from rlsys.grading.refusals import is_unfinished
from rlsys.grading.spelling import normal_form, squeeze
from rlsys.grading.units import same_unit, split_unit


class Pair(NamedTuple):
    """Two expressions that only computer algebra can compare, in `tidy` spelling."""

    answer: str
    gold: str
    tolerance: Fraction | None = None
    up_to_constant: bool = False
    """They may differ by a constant: both came with a constant of integration."""


Algebra = Callable[[Pair], bool | None]
"""Compares two expressions; None if it cannot tell or must not try."""


def undecided(pair: Pair) -> None:
    """The algebra of a caller that has none."""


_RATIO = re.compile(r"([^:]+):([^:]+)")
_NAME = re.compile(
    r"(?:\\angle\s*)?\\?[A-Za-z]+(?:_\{?[\\\w ]+\}?)?'*(?:\s*\(\s*\\?[a-z]+\s*\))?"
    r"|\\angle\s*[A-Z](?:\s*[A-Z](?:_\{?\d\}?)?)*"
)
_EQUALS = re.compile(r"(?<![<>!\\])=|\\approx(?![a-zA-Z])|[{}()\[\]]")


def _sides(text: str) -> list[str]:
    r"""Split at the equals signs outside of brackets, so not in `\sum_{k=1}`."""
    sides, start, depth = [], 0, 0
    for sign in _EQUALS.finditer(text):
        if sign.group() in "{}()[]":
            depth += 1 if sign.group() in "{([" else -1
        elif depth == 0:
            sides.append(text[start : sign.start()].strip())
            start = sign.end()
    return [*sides, text[start:].strip()]


def same_value(
    answer: str, gold: str, *, tolerance: Fraction | None, algebra: Algebra
) -> bool | None:
    """Compare two single values."""
    answer, gold = _same_names(answer, gold)
    if not answer:
        return False
    a_normal, g_normal = normal_form(answer), normal_form(gold)
    if squeeze(a_normal) == squeeze(g_normal):
        return True
    group = synonym_group(g_normal)
    if group is not None and group == synonym_group(a_normal):
        return True
    a, g = as_number(a_normal), as_number(g_normal)
    a_unit = g_unit = None
    if a is None or g is None:
        answer, gold = _same_angles(answer, gold)
        gold, g_unit = split_unit(gold)
        g = as_number(normal_form(gold))
        answer, a_unit = split_unit(answer, of_number=g is not None)
        a_normal, g_normal = normal_form(answer), normal_form(gold)
        a, g = as_number(a_normal), as_number(g_normal)
    if not same_unit(a_unit, g_unit):
        return False
    if a is not None and g is not None:
        return same_number(a, g, tolerance)
    if squeeze(a_normal) == squeeze(g_normal):
        return True
    if g is not None and is_unfinished(a_normal):
        return False
    if r"\ldots" in a_normal or r"\ldots" in g_normal:
        return False
    return _same_expression(answer, gold, tolerance, algebra)


def _same_expression(
    answer: str, gold: str, tolerance: Fraction | None, algebra: Algebra
) -> bool | None:
    ratios = _RATIO.fullmatch(answer), _RATIO.fullmatch(gold)
    if ratios[1] is not None:
        gold = rf"\frac{{{ratios[1][1]}}}{{{ratios[1][2]}}}"
        if ratios[0] is not None:
            answer = rf"\frac{{{ratios[0][1]}}}{{{ratios[0][2]}}}"
    constants = _constant_of_integration(answer), _constant_of_integration(gold)
    if constants[0] and constants[1]:
        return algebra(Pair(*constants, tolerance, up_to_constant=True))
    return algebra(Pair(answer, gold, tolerance))


def _same_names(answer: str, gold: str) -> tuple[str, str]:
    r"""Take the names off equations: `x=5` is 5, `f(n)=n` is n, the end of `3+4=7` is 7.

    Both keep theirs where they differ, because x=5 is not y=5. Of `\sqrt2 \approx 1.41` the side
    that is written like the gold counts.
    """
    if r"\approx" in answer:
        answer = _side_like(answer, gold)
    a_name, a_value = _equation(answer)
    g_name, g_value = _equation(gold)
    if g_name is not None and a_name is not None:
        return (a_value, g_value) if a_name == g_name else (answer, gold)
    a_sides, g_sides = _sides(answer), _sides(gold)
    if g_name is not None and len(a_sides) == 1:
        return answer, g_value
    return (a_sides[-1], gold) if len(g_sides) == 1 else (answer, gold)


def _equation(text: str) -> tuple[str | None, str]:
    """Split `name = ... = value` into name and value; the name is None for anything else."""
    sides = _sides(text)
    if len(sides) > 1 and _NAME.fullmatch(sides[0]):
        return squeeze(normal_form(sides[0])), sides[-1]
    return None, text


_DECIMAL = re.compile(r"\d\.\d")


def _side_like(answer: str, gold: str) -> str:
    exact, _, rounded = answer.partition(r"\approx")
    if _NAME.fullmatch(exact.strip()):
        return answer
    return (
        rounded.strip() if _DECIMAL.search(gold) or as_number(normal_form(gold)) else exact.strip()
    )


_DEGREES = re.compile(
    r"\s*\^\\circ\s*(?:(?:\\(?:text|mathrm)\s*\{\s*[CF]\s*\})|(?:\\;)?\s*[CF]\b)?"
)
_DEGREE_VALUE = re.compile(r"(\d+(?:\.\d+)?)\s*\^\\circ")
_TRIGONOMETRY = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)")


def plain_degrees(text: str) -> str:
    """Write an angle in degrees as the bare number, outside of trigonometric functions."""
    if r"^\circ" not in text or _TRIGONOMETRY.search(text):
        return _DEGREE_VALUE.sub(r"(\\frac{\1\\pi}{180})", text)
    return _DEGREES.sub(" ", text).strip()


def _same_angles(answer: str, gold: str) -> tuple[str, str]:
    """Write both angles in the same measure: degrees against a multiple of pi are radians."""
    in_degrees = r"^\circ" in answer, r"^\circ" in gold
    if in_degrees == (True, False) and r"\pi" in gold:
        return _DEGREE_VALUE.sub(r"(\\frac{\1\\pi}{180})", answer), gold
    if in_degrees == (False, True) and r"\pi" in answer:
        return answer, _DEGREE_VALUE.sub(r"(\\frac{\1\\pi}{180})", gold)
    return plain_degrees(answer), plain_degrees(gold)


_CONSTANT = re.compile(
    r"(.*\S)\s*\+\s*(?:([CcKk])(?:_\{?\d\}?)?|\\text\s*\{\s*[Cc]onst(?:ant|\.)?\s*\})\s*", re.DOTALL
)


def _constant_of_integration(text: str) -> str:
    """Return the text before a final `+ C` whose C stands nowhere else, empty if there is none."""
    match = _CONSTANT.fullmatch(text)
    if match is None or (
        match[2] and re.search(rf"(?<![a-zA-Z\\]){match[2]}(?![a-zA-Z])", match[1])
    ):
        return ""
    return match[1]
