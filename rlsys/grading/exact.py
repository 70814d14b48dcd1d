r"""Exact values of written numbers: integers, decimals, fractions, percent, scientific notation.

Rational arithmetic, hence no number is too small or too large to be told from its neighbour.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

RELATIVE_TOLERANCE = Fraction(1, 1_000_000)
"""A decimal stands for an exact number that it misses by no more: 0.333333 is 1/3, 0.33 is not."""


class Number(NamedTuple):
    """A number written out in an answer, exact."""

    value: Fraction
    """Of `25%`, 25."""
    is_ratio: bool = False
    """Written as a fraction rather than with digits and a point."""
    has_point: bool = False
    is_percent: bool = False


_MAX_DIGITS = 1000  # Python refuses to read integers of more than 4300 digits
_PLAIN = re.compile(r"(\d{1,3}(?:,\d{3})+|\d{1,3}(?: \d{3})+|\d*)(\.\d*)?", re.ASCII)
_FRACTION = re.compile(r"(?:(?P<whole>\d+) ?)?\\frac\{(?P<over>[^{}]*)\}\{(?P<under>[^{}]*)\}")
_SLASH = re.compile(r"(?:(?P<whole>\d+) )?(?P<over>[^/ ]+)/(?P<under>[^/ ]+)")
_SCALE = re.compile(r"(?:\\times ?)?10\^\{?([+-]?\d{1,3})\}?", re.ASCII)


@lru_cache(maxsize=16_384)
def as_number(text: str) -> Number | None:
    r"""Return the exact value of a number, else None. `text` is in normal form.

    Read are `1,234.5`, `1 234`, `a/b`, `\frac{a}{b}`, `1\frac{1}{4}`, `1 1/4`, `3\times 10^{6}`,
    `10^{6}` and each with `%` behind it. Commas and spaces count only as thousands separators.
    """
    if len(text) > _MAX_DIGITS:
        return None
    if text.startswith("(") and text.endswith(")") and "," not in text:
        text = text[1:-1]
    if text.endswith("%"):
        number = None if "%" in text[:-1] else as_number(text[:-1].rstrip())
        return number and number._replace(is_percent=True)
    negative = text.startswith("-")
    unsigned = text[1:] if text[:1] in ("-", "+") and text[1:2] not in ("-", "+") else text
    number = _unsigned(unsigned)
    return number._replace(value=-number.value) if number and negative else number


def _unsigned(text: str) -> Number | None:
    if (number := _decimal(text)) is not None:
        return number
    match = _FRACTION.fullmatch(text) or _SLASH.fullmatch(text)
    if match is None:
        return None
    over, under = _signed_decimal(match["over"]), _signed_decimal(match["under"])
    if over is None or under is None or under.value == 0:
        return None
    value = over.value / under.value
    if match["whole"] is not None:
        if not 0 < value < 1:
            return None  # `2\frac{3}{2}` may be a product
        value += int(match["whole"])
    return Number(value, is_ratio=True)


def _signed_decimal(text: str) -> Number | None:
    number = _decimal(text.removeprefix("-"))
    return number._replace(value=-number.value) if number and text.startswith("-") else number


def _decimal(text: str) -> Number | None:
    r"""Read digits with a point, with `\times 10^{k}` behind them, or a power of ten alone."""
    plain = _PLAIN.match(text)
    assert plain is not None  # it matches the empty text
    whole, point = plain.groups()
    digits = whole.replace(",", "").replace(" ", "") + (point or "")
    scale = Fraction(1)
    if plain.end() < len(text):
        power = _SCALE.fullmatch(text, plain.end())
        if power is not None and digits.strip("."):
            scale = Fraction(10) ** int(power[1])
        elif (power := _SCALE.fullmatch(text)) is not None and not text.startswith("\\"):
            digits, point, scale = "1", None, Fraction(10) ** int(power[1])
        else:
            return None
    if not digits.strip("."):
        return None
    return Number(Fraction(digits) * scale, has_point=point is not None)


def same_number(answer: Number, gold: Number, tolerance: Fraction | None = None) -> bool:
    """Tell whether two numbers are the same, exactly or within the gold's absolute tolerance.

    Where one is a decimal and the other a fraction, `RELATIVE_TOLERANCE` holds. Percent against a
    plain number may be meant either way: 25% is 0.25, and 25 where the question asks for percent.
    """
    scales = [Fraction(1)]
    if answer.is_percent != gold.is_percent:
        scales.append(Fraction(1, 100) if answer.is_percent else Fraction(100))
    allowed = Fraction(0) if tolerance is None else tolerance
    if answer.is_ratio != gold.is_ratio and (answer.has_point or gold.has_point):
        allowed = max(allowed, RELATIVE_TOLERANCE * max(abs(answer.value), abs(gold.value)))
    return any(abs(answer.value * scale - gold.value) <= allowed for scale in scales)
