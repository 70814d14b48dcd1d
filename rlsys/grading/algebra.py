"""Computer algebra for pairs of expressions. Runs only inside the grading process.

Numbers are compared exactly or to 50 digits, expressions by their values at fixed points, and what
is left (equations, sets, matrices) by math-verify. Text is read by math-verify's LaTeX grammar,
never by eval.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import lru_cache
from typing import Any

from rlsys.grading.values import Pair

_DIGITS = 50
_DECIMAL_ERROR = 1e-6
_EXACT_ERROR = 1e-30
_POINTS = 12
_ENOUGH_POINTS = 4


def _mixed(match: re.Match[str]) -> str:
    """Write `1\frac{1}{2}` as a sum, `2\frac{3}{2}` as a product."""
    whole, over, under = match.groups()
    sign = "+" if int(over) < int(under) else r"\cdot "
    return rf"({whole}{sign}\frac{{{over}}}{{{under}}})"


_FOR_GRAMMAR: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    (re.compile(r"\\;"), " "),
    (re.compile(r"(?<!\\)%"), r"\\%"),
    # The grammar knows E only as Euler's number.
    (re.compile(r"(?<![A-Za-z\\])E(?=_)"), r"\\Xi"),
    # It reads `\gamma^{2}-1` as a value of the gamma function.
    (re.compile(r"\\gamma(?![A-Za-z])"), r"\\upsilon"),
    # It reads `2(1/3)` and `(2)(3)` as mixed numbers, hence as sums.
    (re.compile(r"(?<![\d.^_}])(\d+) ?\\frac\{(\d+)\}\{(\d+)\}"), _mixed),
    (re.compile(r"(?<![\d_^.])(\d+(?:\.\d+)?) ?(?=\()"), r"\1\\cdot "),
    (re.compile(r"\) ?(?=[\d(])"), r")\\cdot "),
    (re.compile(r"(?<![A-Za-z])([A-Za-z])(?:'|\^\{?\\prime\}?)"), r"\1_{prime}"),
)


@lru_cache(maxsize=1024)
def parse(text: str) -> Any | None:
    """Return the sympy object that math-verify's grammar reads in a text, None if it reads none.

    Unlike math-verify this keeps upper and lower case apart, and takes no letter for a unit: units
    are taken off before.
    """
    from latex2sympy2_extended import NormalizationConfig, latex2sympy
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig
    from math_verify.grader import should_treat_as_complex

    for pattern, replacement in _FOR_GRAMMAR:
        text = pattern.sub(replacement, text)
    try:
        return latex2sympy(
            text,
            is_real=not should_treat_as_complex(text),
            normalization_config=NormalizationConfig(basic_latex=True, boxed="none"),
            conversion_config=ConversionConfig(lowercase_symbols=False),
        )
    except MemoryError:
        raise
    except Exception:  # the grammar raises many kinds of errors for text that is no mathematics
        return None


def equal(pair: Pair) -> bool:
    """Tell whether two expressions are equal. Raises whatever the libraries below raise."""
    answer, gold = parse(pair.answer), parse(pair.gold)
    if answer is None or gold is None:
        return False
    verdict = _by_value(answer, gold, pair)
    return _verify(answer, gold) if verdict is None else verdict


def _verify(answer: Any, gold: Any) -> bool:
    from math_verify import verify

    return bool(
        verify(
            gold, answer, timeout_seconds=None, raise_on_error=True, allow_set_relation_comp=True
        )
    )


def plain_equal(answer: str, gold: str) -> bool:
    """Ask math-verify alone, as it reads and compares by default."""
    from math_verify import parse as read
    from math_verify import verify

    expressions = [
        read(f"\\boxed{{{text}}}", parsing_timeout=None, raise_on_error=True)
        for text in (gold, answer)
    ]
    return bool(verify(*expressions, timeout_seconds=None, raise_on_error=True))


def is_read(text: str) -> bool:
    """Tell whether math-verify's grammar makes something of a text that equals itself."""
    from math_verify import LatexExtractionConfig, verify
    from math_verify import parse as read

    # No plain-expression extraction: it would pick a number out of text that is not an answer.
    expressions = read(
        f"\\boxed{{{text}}}",
        [LatexExtractionConfig()],
        fallback_mode="no_fallback",
        parsing_timeout=None,
        raise_on_error=True,
    )
    return bool(verify(expressions, expressions, timeout_seconds=None, raise_on_error=True))


def _by_value(answer: Any, gold: Any, pair: Pair) -> bool | None:
    """Compare two numbers or two expressions by value; None for anything else."""
    import sympy

    if isinstance(answer, sympy.core.relational.Relational):
        return _same_relation(answer, gold) or None
    if not isinstance(answer, sympy.Expr) or not isinstance(gold, sympy.Expr):
        return None
    if answer.has(sympy.MatrixBase, sympy.MatrixExpr) or gold.has(sympy.MatrixBase):
        return None
    answer, gold = _evaluated(answer), _evaluated(gold)
    if not answer.free_symbols and not gold.free_symbols:
        return _same_constant(answer, gold, pair)
    return _same_function(answer, gold, up_to_constant=pair.up_to_constant)


def _evaluated(expression: Any) -> Any:
    """Carry out what the grammar left undone; the letter i is the imaginary unit."""
    import sympy

    expression = expression.doit()
    names = {
        symbol: sympy.I if symbol.name == "i" else sympy.Symbol(_symbol_name(symbol.name))
        for symbol in expression.free_symbols
    }
    return expression.xreplace(names)


def _symbol_name(name: str) -> str:
    """Return one name for C_1, C_{1} and c_1."""
    plain = name.replace("{", "").replace("}", "").replace("\\", "")
    return re.sub(r"^[cC](?=_?\d$)", "C", plain)


def _same_constant(answer: Any, gold: Any, pair: Pair) -> bool | None:
    import sympy

    if answer.is_Rational and gold.is_Rational:
        gap = abs(Fraction(int(answer.p), int(answer.q)) - Fraction(int(gold.p), int(gold.q)))
        return gap <= (pair.tolerance or 0)
    if answer.is_infinite or gold.is_infinite:
        return bool(answer == gold)
    a, g = answer.evalf(_DIGITS), gold.evalf(_DIGITS)
    if not (a.is_number and g.is_number and a.is_finite and g.is_finite):
        return None
    decimals = answer.has(sympy.Float), gold.has(sympy.Float)
    if decimals == (False, False):
        error = _EXACT_ERROR
    else:
        error = _DECIMAL_ERROR if decimals != (True, True) else 1e-12
    gap = abs(a - g)
    allowed = error * max(abs(a), abs(g)) if decimals == (False, False) else error * abs(g)
    if pair.tolerance is not None:
        allowed = max(allowed, sympy.Rational(str(pair.tolerance)))
    return bool(gap <= allowed)


def _same_function(answer: Any, gold: Any, *, up_to_constant: bool = False) -> bool | None:
    """Compare two expressions at fixed points; None if too few points have a real value.

    Expressions with an imaginary unit are compared as complex values.
    """
    import sympy

    if answer.has(sympy.core.function.AppliedUndef) or gold.has(sympy.core.function.AppliedUndef):
        return None
    complex_values = answer.has(sympy.I) or gold.has(sympy.I)
    error = _DECIMAL_ERROR if answer.has(sympy.Float) != gold.has(sympy.Float) else 1e-12
    offset, seen = None, 0
    for point in _points(answer, gold):
        a, g = (_value(expression, point) for expression in (answer, gold))
        if a is None or g is None or not (complex_values or (_is_real(a) and _is_real(g))):
            continue
        if up_to_constant and offset is None:
            offset = a - g
        gap = abs(a - g - (offset or 0))
        if gap > error * max(abs(a), abs(g), 1e-30):
            return False
        seen += 1
        if seen == _ENOUGH_POINTS + up_to_constant:
            return True
    return None


def _value(expression: Any, point: dict[Any, Any]) -> Any | None:
    value = expression.subs(point).evalf(30)
    return value if value.is_number and value.is_finite else None


def _is_real(value: Any) -> bool:
    return bool(abs(value.as_real_imag()[1]) <= 1e-20 * max(1, abs(value)))


def _points(answer: Any, gold: Any) -> Iterator[dict[Any, Any]]:
    """Fixed points: integers where an expression means integers only, else fractions."""
    import sympy

    symbols = sorted(answer.free_symbols | gold.free_symbols, key=lambda symbol: symbol.name)
    whole = (sympy.floor, sympy.ceiling, sympy.factorial, sympy.binomial, sympy.Sum, sympy.Product)
    integers = any(expression.has(*whole) for expression in (answer, gold))
    generator = random.Random(20)
    for number in range(_POINTS):
        # Every third point is negative, where |x| is not x. Most are positive, where roots and
        # logarithms are real. Long names (r_0, rho) are quantities, which are positive.
        sign = -1 if number % 3 == 2 else 1
        yield {
            symbol: sympy.Integer(generator.randint(3, 14))
            if integers
            else sympy.Rational(
                (sign if len(symbol.name) == 1 else 1) * generator.randint(200, 3000), 997
            )
            for symbol in symbols
        }


def _same_relation(answer: Any, gold: Any) -> bool:
    """Tell whether two equations, or two inequalities, are the same up to a constant factor."""
    import sympy

    relation = sympy.core.relational
    kinds = (sympy.Eq, sympy.Ne, relation._Greater | relation._Less)
    if not any(isinstance(answer, kind) and isinstance(gold, kind) for kind in kinds):
        return False
    one_sided = isinstance(gold, kinds[2])
    if one_sided and _is_strict(answer) != _is_strict(gold):
        return False
    sides = [_evaluated(r.gts - r.lts if one_sided else r.lhs - r.rhs) for r in (answer, gold)]
    if not sides[0].free_symbols or sides[0].free_symbols != sides[1].free_symbols:
        return False
    ratios = []
    for point in _points(*sides):
        a, g = _value(sides[0], point), _value(sides[1], point)
        if a is not None and g is not None and g != 0:
            ratios.append(a / g)
    if len(ratios) < _ENOUGH_POINTS or ratios[0] == 0 or (one_sided and not ratios[0] > 0):
        return False
    return all(abs(ratio - ratios[0]) <= 1e-12 * abs(ratios[0]) for ratio in ratios)


def _is_strict(relation: Any) -> bool:
    return relation.rel_op in ("<", ">")
