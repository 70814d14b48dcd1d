r"""What counts as an answer: extraction, normal form, exact numbers, and what is refused unread.

Everything here is a pure function of text, linear in its length, and never evaluates anything.

Extraction policy (rlsys.grading.compare states the rest):
1. Only text after the last `</think>` counts, or all of it where there is none.
2. If a paragraph of that begins with the line `**Final Answer**`, only the first such paragraph
   counts, and it ends at the first blank line, right after the header too (arXiv 2505.13438, reward
   of the published code).
3. The answer is what the last `\boxed{...}` or `\fbox{...}` holds, braces matched. No box is no
   answer. Neither is a last box that never closes (a cut-off answer) or closes only after 65,536
   characters, nor `\boxed 7` without braces.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

THINK_END = "</think>"
ANSWER_HEADER = "**Final Answer**"

_BLANK_LINE = re.compile(r"\n\s*\n")
# Greedy from the start, so that the last box is found in one pass over any text.
_LAST_BOX = re.compile(r".*\\(?:boxed|fbox)\s*\{", re.DOTALL)
_LONGEST_BOX = 65_536
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)


def extract_answer(text: str) -> str | None:
    r"""Return the content of the last `\boxed{...}` of the answer paragraph, or None.

    Example: extract_answer(r"so </think> it is \boxed{\frac{1}{2}}") == r"\frac{1}{2}"
    """
    paragraph = _answer_paragraph(text)
    box = _LAST_BOX.match(paragraph)
    if box is None:
        return None
    content = paragraph[box.end() : box.end() + _LONGEST_BOX]
    depth = 1
    for brace in _BRACE.finditer(content):
        # An escaped brace (a LaTeX set) is text, hence the `\\.` branch of the pattern.
        depth += {"{": 1, "}": -1}.get(brace.group(), 0)
        if depth == 0:
            return content[: brace.start()].strip()
    return None


def _answer_paragraph(text: str) -> str:
    text = text.rpartition(THINK_END)[2]
    for paragraph in _BLANK_LINE.split(text):
        first_line = paragraph.strip().partition("\n")[0]
        if first_line.rstrip() == ANSWER_HEADER:
            return paragraph
    return text


_GOLD_MARKS = (re.compile(r"####\s*(.*)"), re.compile(r"(?i)the answer is:?\s*(.*)"))


def clean_gold(text: str) -> str:
    r"""Return the answer that a gold column means, empty if it means none.

    `... #### 240`, `The answer is: 240`, `$\boxed{240}$` and `240.` are all `240`.
    """
    if _LAST_BOX.match(text):
        return extract_answer(text) or ""
    for mark in _GOLD_MARKS:
        if matches := mark.findall(text):
            text = matches[-1]
            break
    text = text.strip().removesuffix(".").rstrip()
    if len(text) > 1 and text[0] == text[-1] == "$" and text.count("$") == 2:
        text = text[1:-1].strip()
    return text


_REWRITES = (
    (re.compile(r"\\[!]|\\(?:left|right|displaystyle)(?![a-zA-Z])"), ""),
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"(?<=\d)\\,(?=\d)"), ""),
    (re.compile(r"\\[,;: ]|~|\\quad(?![a-zA-Z])"), " "),
    (re.compile(r"\\[dt]frac(?![a-zA-Z])"), r"\\frac"),
    (re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox)\s*\{([^{}\\]*)\}"), r" \1 "),
    (re.compile(r"\\\$|\$"), ""),
    (re.compile(r"\*\*"), "^"),
    (re.compile("\N{MINUS SIGN}"), "-"),
    (re.compile(r"\s+"), " "),
    (re.compile(r" ?([^\w\s\\]) ?"), r"\1"),
)


def normalise(text: str) -> str:
    r"""Return the spelling that decides whether two answers are literally the same.

    Spacing, dollar signs, `\text{}`, `\left`, `\dfrac`, `**` and a final full stop do not count.
    """
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    return text.strip().removesuffix(".")


class Number(NamedTuple):
    """A number written out in an answer, exact."""

    value: Fraction
    is_ratio: bool
    """Written a/b rather than with digits and a point."""
    has_point: bool


_DIGITS = r"(?:\d{1,3}(?:,\d{3})+|\d+)"
_DECIMAL = re.compile(rf"([+-]?)({_DIGITS}?)(\.\d*)?", re.ASCII)
_RATIO = re.compile(
    r"([+-]?)(?:\\frac\{([+-]?\d+)\}\{(\d+)\}|\\frac(\d)(\d)|([+-]?\d+)/(\d+))", re.ASCII
)
_MAX_DIGITS = 1000  # Python refuses to read integers of more than 4300 digits


def as_number(text: str) -> Number | None:
    r"""Return the exact value of a plain integer, decimal, `a/b` or `\frac{a}{b}`, else None.

    `text` is in normal form (`normalise`). Commas count only as thousands separators.
    """
    if len(text) > _MAX_DIGITS:
        return None
    if text.startswith("(") and text.endswith(")"):
        text = text[1:-1]
    if match := _DECIMAL.fullmatch(text):
        sign, whole, point = match.groups()
        digits = whole.replace(",", "") + (point or "")
        if not digits.strip("."):
            return None
        return Number(Fraction(sign + digits), is_ratio=False, has_point=point is not None)
    if match := _RATIO.fullmatch(text):
        sign, *parts = match.groups()
        numerator, denominator = (int(part) for part in parts if part is not None)
        if denominator == 0:
            return None
        value = Fraction(numerator, denominator)
        return Number(-value if sign == "-" else value, is_ratio=True, has_point=False)
    return None


_WORD = re.compile(r"[A-Za-z]{3,}(?:[ -][A-Za-z]+)*|yes|no", re.IGNORECASE)


def is_word(text: str) -> bool:
    """Tell whether a gold is a word (`Evelyn`, `even`), not a product of one-letter symbols."""
    return _WORD.fullmatch(text) is not None


_SCIENTIFIC = re.compile(r"(?<=\d)\s*(?:\\times|\\cdot|\*|×|·)\s*10\^")
_OPERATION = re.compile(
    r"[\d)}!]\s*(?:[+*×·÷-]|\\(?:cdot|times|div)(?![a-zA-Z]))\s*(?:[\d({.+-]|\\(?:frac|sqrt))"
)


def is_unfinished(text: str) -> bool:
    r"""Tell whether an answer still holds a sum, difference or product to be worked out.

    Where the gold is a plain number, copying the question (`3+8-2` for 9) must not be an answer.
    Scientific notation, a single fraction, powers and roots are values, not unfinished work.
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
