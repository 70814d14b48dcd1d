r"""Answers that are never handed to computer algebra: unfinished work, and text too costly to read.

Pure functions of text in normal form (rlsys.grading.spelling), linear in its length.
"""

from __future__ import annotations

import re

_SCIENTIFIC = re.compile(r"(?<=\d)\s*(?:\\times|\\cdot|\*|×|·)\s*10\^")
_OPERATION = re.compile(
    r"[\d)}!]\s*(?:[+*×·÷-]|\\(?:cdot|times|div)(?![a-zA-Z]))\s*(?:[\d({.+-]|\\(?:frac|sqrt))"
    r"|(?<![_^\d.])\d+ ?\( ?[\d.+-]|\) ?\( ?[\d.+-]"
    r"|\d \d"
)


def is_unfinished(text: str) -> bool:
    r"""Tell whether an answer still holds a sum, difference or product to be worked out.

    Where the gold is a plain number, copying the question (`3+8-2` for 9) must not be an answer.
    Two numbers side by side are none either. Scientific notation, a single fraction, powers and
    roots are values, not unfinished work.
    """
    value = text.rpartition("=")[2]
    return _OPERATION.search(_SCIENTIFIC.sub("e", value)) is not None


_MAX_DEPTH = 25
_MAX_EXPONENT = 10_000
_MAX_POWER_DIGITS = 20_000
_MAX_FACTORIAL = 2_500
_HUGE = "@"  # stands for a number too long to be the base or the exponent of another power

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_FACTORIAL = re.compile(r"(\d+|@|!)(?=[\s)}\]]*!)")
_GROUPED_NUMBER = re.compile(r"[({]\s*([+-]?\s*(?:\d+|@))\s*[)}]")
_NUMERIC_POWER = re.compile(r"(\d+|@)\s*\^\s*([+-]?)\s*(\d+|@)(?!\s*[\^\d])")


def is_refused(text: str) -> bool:
    """Tell whether an answer is refused unread: its evaluation could eat the machine.

    Refused are control characters, brackets nested deeper than 25, factorials beyond 2500! or of
    factorials, and powers of numbers beyond about 20,000 digits, which towers of powers are.
    `text` is in normal form. What slips through still meets the worker's time and memory limits.
    """
    if _CONTROL.search(text) or _depth(text) > _MAX_DEPTH:
        return True
    folded = _fold_powers(text)
    if folded is None:
        return True
    factorials = _FACTORIAL.findall(folded)
    return any(not n.isdigit() or len(n) > 6 or int(n) > _MAX_FACTORIAL for n in factorials)


def _depth(text: str) -> int:
    depth = deepest = 0
    for character in text:
        if character in "{([":
            depth += 1
            deepest = max(deepest, depth)
        elif character in "})]":
            depth -= 1
    return deepest


def _fold_powers(text: str) -> str | None:
    """Replace powers of plain numbers by their values, innermost first; None if one is too long."""
    while True:
        text, ungrouped = _GROUPED_NUMBER.subn(r" \1 ", text)
        if ungrouped:
            continue
        power = _NUMERIC_POWER.search(text)
        if power is None:
            return text
        base, sign, exponent = power.groups()
        digits = _power_digits(base, exponent)
        if digits > _MAX_POWER_DIGITS:
            return None
        value = str(int(base) ** int(exponent)) if digits <= 8 and sign != "-" else _HUGE
        text = f"{text[: power.start()]} {value} {text[power.end() :]}"


def _power_digits(base: str, exponent: str) -> int:
    """Return an upper bound of the decimal digits of base ** exponent."""
    if base in ("0", "1"):
        return 1
    if _HUGE in (base, exponent) or len(exponent) > 5 or int(exponent) > _MAX_EXPONENT:
        return _MAX_POWER_DIGITS + 1
    return max(1, len(base) * int(exponent))
