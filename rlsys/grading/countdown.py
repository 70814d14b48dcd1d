"""Answers of the numbers game Countdown: an expression of the given numbers that equals a target.

The rule is *exactly once*: a right answer uses every given number once and no other number, with
`+ - * /` and parentheses. Stream of Search (arXiv 2404.03683) and TinyZero use this rule, while the
television game allows numbers to be left out. Under the rule of the game, two of four numbers often
suffice, so the count of numbers would not tell how hard a problem is.

Texts are never evaluated as code. A parser builds a small tree, the numbers in its leaves are
compared with the given ones, and only then is the value computed, as an exact fraction. Texts that
are too long or too deep are refused before that, so grading takes less than a millisecond.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from typing import Final, Literal, NamedTuple, cast

from rlsys.errors import DataError

Sign = Literal["+", "-", "*", "/"]

MAX_CHARACTERS: Final = 256
"""Longer expressions are refused: six numbers of three digits need about 50 characters."""
MAX_DEPTH: Final = 16
"""Most parentheses that are open at the same place."""

_NUMBER = r"[1-9][0-9]{0,8}"
_GOLD: Final = re.compile(rf"({_NUMBER}(?:,{_NUMBER})*)->({_NUMBER})")
# `\times`, `\cdot` and `\div` are how most language models write these signs inside a box.
_TOKEN: Final = re.compile(rf" *({_NUMBER}(?![0-9])|[-+*/()]|\\times|\\cdot|\\div) *")
_LATEX: Final = {"\\times": "*", "\\cdot": "*", "\\div": "/"}


class CountdownGold(NamedTuple):
    """What a gold text such as `19,35,44->98` means."""

    numbers: tuple[int, ...]
    """Given numbers, sorted."""
    target: int


class Operation(NamedTuple):
    """An inner node of an expression; a leaf is an integer."""

    sign: Sign
    left: Expression
    right: Expression


Expression = Operation | int


@lru_cache(maxsize=65_536)
def countdown_gold(text: str) -> CountdownGold | None:
    """Read a gold text: given numbers, then the target; None if it is not written like that.

    Example: countdown_gold("35,19,44->98") == CountdownGold((19, 35, 44), 98)
    """
    match = _GOLD.fullmatch(text)
    if match is None:
        return None
    return CountdownGold(tuple(sorted(map(int, match[1].split(",")))), int(match[2]))


def check_countdown_gold(problem_id: str, text: str) -> None:
    """Raise DataError if a gold text is not numbers and a target."""
    if countdown_gold(text) is None:
        raise DataError(
            f"problem {problem_id!r} has the answer {text[:40]!r}, and grading.policy 'countdown' "
            "needs given numbers and a target, such as '19,35,44->98'; correct it, or choose "
            "another grading.policy"
        )


def solves(answer: str, gold: str) -> bool:
    """Tell whether an expression uses the numbers of `gold` once each and equals its target.

    Example: solves("(35 + 44) + 19", "19,35,44->98") is True
    """
    known, expression = countdown_gold(gold), parse_expression(answer)
    if known is None or expression is None:
        return False
    # The numbers first: they bound the value, which could otherwise be made huge.
    if sorted(leaves(expression)) != list(known.numbers):
        return False
    return value(expression) == known.target


def parse_expression(text: str) -> Expression | None:
    """Return the tree of an expression, None for any other text.

    `*` and `/` bind tighter than `+` and `-`; signs of equal strength are read from the left.
    Refused are signs in front of a number (`-3+5`), decimal points, leading zeros, digits outside
    of ASCII, an equals sign, more than `MAX_CHARACTERS` and more than `MAX_DEPTH`.
    """
    tokens = _tokens(text)
    if not tokens:
        return None
    parser = _Parser(tokens)
    expression = parser.sum(depth=0)
    return expression if parser.at_end else None


def leaves(expression: Expression) -> list[int]:
    """Return the numbers of an expression, from left to right."""
    if isinstance(expression, int):
        return [expression]
    return leaves(expression.left) + leaves(expression.right)


def value(expression: Expression) -> Fraction | None:
    """Return the exact value of an expression, None where it divides by zero."""
    if isinstance(expression, int):
        return Fraction(expression)
    left, right = value(expression.left), value(expression.right)
    if left is None or right is None:
        return None
    match expression.sign:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case "/":
            return left / right if right else None


def _tokens(text: str) -> list[str] | None:
    """Split a text into numbers, signs and parentheses; None if it holds anything else."""
    if len(text) > MAX_CHARACTERS:
        return None
    tokens, end = [], 0
    while end < len(text):
        match = _TOKEN.match(text, end)
        if match is None:
            return None
        tokens.append(_LATEX.get(match[1], match[1]))
        end = match.end()
    return tokens


class _Parser:
    """Recursive descent over tokens; a method returns None where the tokens are no expression."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._place = 0

    @property
    def at_end(self) -> bool:
        return self._place == len(self._tokens)

    def sum(self, depth: int) -> Expression | None:
        left = self._product(depth)
        while left is not None and (sign := self._take("+-")):
            right = self._product(depth)
            left = None if right is None else Operation(cast(Sign, sign), left, right)
        return left

    def _product(self, depth: int) -> Expression | None:
        left = self._operand(depth)
        while left is not None and (sign := self._take("*/")):
            right = self._operand(depth)
            left = None if right is None else Operation(cast(Sign, sign), left, right)
        return left

    def _operand(self, depth: int) -> Expression | None:
        if self._take("("):
            inner = self.sum(depth + 1) if depth < MAX_DEPTH else None
            return inner if self._take(")") else None
        if self.at_end or not self._tokens[self._place].isdigit():
            return None
        self._place += 1
        return int(self._tokens[self._place - 1])

    def _take(self, expected: str) -> str | None:
        """Take the next token if it is one of the expected characters."""
        if self.at_end or self._tokens[self._place] not in expected:
            return None
        self._place += 1
        return self._tokens[self._place - 1]
