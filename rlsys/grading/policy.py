r"""Is an answer right? The default policy, as docs/grading.md explains it with examples.

`judge` works through cheap exact rules first: same spelling, words, choices, exact numbers, and
the shape of lists, sets and intervals. What is left are pairs of single expressions, which only
computer algebra can compare: a caller without it gets None, the grading process
(rlsys.grading.worker) passes a function that can tell.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache, partial
from typing import NamedTuple

from rlsys.grading.exact import Number, as_number, same_number
from rlsys.grading.phrases import (
    as_choice,
    as_choices,
    is_phrase,
    is_time,
    same_phrase,
    synonym_group,
    without_lead_in,
)
from rlsys.grading.refusals import is_refused, is_unfinished
from rlsys.grading.spelling import normal_form, normalise, squeeze, tidy
from rlsys.grading.structures import Bag, Leaf, read, same_shape
from rlsys.grading.units import split_unit
from rlsys.grading.values import Algebra, Pair, plain_degrees, same_value, undecided


class Gold(NamedTuple):
    """What a gold text means."""

    answers: tuple[str, ...]
    """Accepted answers; one of them is enough."""
    tolerance: Fraction | None = None
    """Largest absolute error of a numeric answer; None compares exactly."""


def judge(answer: str, gold: Gold, algebra: Algebra = undecided) -> bool | None:
    """Tell whether an answer equals one of the accepted ones; None if `algebra` could not tell."""
    verdicts = [_judge_one(answer, text, gold.tolerance, algebra) for text in gold.answers]
    return True if True in verdicts else None if None in verdicts else False


def judge_exactly(answer: str, gold: Gold) -> bool:
    """The policy `exact`: the same spelling, or plain numbers of the same value."""
    normal = normalise(answer)
    number = as_number(normal)
    for text in gold.answers:
        known = _known_gold(text)
        if squeeze(normal) == squeeze(known.normal):
            return True
        if number is None or known.number is None:
            continue
        if same_number(number, known.number, gold.tolerance):
            return True
    return False


class _Text:
    """What is needed of an answer again and again, each computed once."""

    __slots__ = ("normal", "number", "tidy", "value")

    def __init__(self, text: str) -> None:
        self.tidy = _circled_list(_without_lead_in(tidy(text)))
        self.normal = without_lead_in(normal_form(self.tidy))
        self.number = as_number(self.normal)
        self.value = self.number or _measured(self.tidy)
        """The number, a unit behind it left off."""


def _measured(text: str) -> Number | None:
    return as_number(normal_form(split_unit(plain_degrees(text), of_number=True).value))


_known_gold = lru_cache(maxsize=65_536)(_Text)


def _judge_one(
    answer_text: str, gold_text: str, tolerance: Fraction | None, algebra: Algebra
) -> bool | None:
    answer, gold = _Text(answer_text), _known_gold(gold_text)
    if not answer.normal or not gold.normal:
        return False
    if answer.number is not None and gold.number is not None:
        return same_number(answer.number, gold.number, tolerance)
    if squeeze(answer.normal) == squeeze(gold.normal):
        return True
    verdict = _judge_words(answer.normal, gold)
    if verdict is not None:
        return verdict
    if as_choice(gold.normal) and (content := _OPTION_CONTENT.fullmatch(gold.tidy)):
        return _judge_one(answer_text, content[1], tolerance, algebra)
    if gold.number is not None and answer.value is None and is_unfinished(answer.normal):
        return False
    # Only its own spelling equals a gold too large to evaluate.
    if is_refused(gold.normal) or is_refused(answer.normal):
        return False
    same = partial(same_value, tolerance=tolerance, algebra=algebra)
    shapes = read(answer.tidy, _is_value), read(gold.tidy, _is_value)
    if isinstance(shapes[0], Bag) and isinstance(shapes[1], Leaf):
        # Against a list, the commas of `312,123,231` separate values, not thousands.
        shapes = shapes[0], read(gold.tidy, _is_no_value)
    verdict = same_shape(*shapes, same)
    if verdict is False and _may_be_a_set(answer.normal, gold.normal, shapes):
        return algebra(Pair(answer.tidy, gold.tidy))
    return verdict


_SET_SIGN = re.compile(r"\\(?:setminus|backslash|mathbb|cap|infty)(?![a-zA-Z])|\\begin")


def _may_be_a_set(answer: str, gold: str, shapes: tuple[object, object]) -> bool:
    """Tell whether computer algebra may still find two sets equal whose shapes differ."""
    both = bool(_SET_SIGN.search(answer) and _SET_SIGN.search(gold))
    return both and not all(isinstance(shape, Leaf) for shape in shapes)


_LEADING_TEXT = re.compile(r"\\text(?:bf|it|rm)?\s*\{([^{}]*)\}\s*(.+)", re.DOTALL)


def _without_lead_in(text: str) -> str:
    match = _LEADING_TEXT.fullmatch(text)
    if match and without_lead_in(f"{match[1].strip()} 0") == "0":
        return match[2]
    return without_lead_in(text)


_CIRCLED = re.compile(r"(?:\(\d+\)[\s,]*){2,}")


def _circled_list(text: str) -> str:
    """Write `(1)(3)(4)`, which circled numbers became, as a list."""
    normal = normal_form(text)
    return ",".join(re.findall(r"\d+", normal)) if _CIRCLED.fullmatch(normal) else text


_OPTION_CONTENT = re.compile(
    r"(?:\\text(?:bf|it|rm)?\s*\{)?\s*\(?[A-K][).:]+\s*\}?(?:[\s.:]|\\;)*(.*)", re.DOTALL
)


_BASE = re.compile(r"[0-9A-F]+_\{?\d+\}?")


def _judge_words(answer: str, gold: _Text) -> bool | None:
    """Compare choices, phrases, synonyms and times of day; None where the gold is none of them."""
    group = synonym_group(gold.normal)
    if group is not None and synonym_group(answer.rpartition("=")[2]) == group:
        return True
    option = as_choice(gold.normal)
    if option is not None:
        chosen = as_choice(answer.rpartition("=")[2].strip())
        if chosen is not None:
            return chosen.letter == option.letter
        return None if option.content else False
    options = as_choices(gold.normal)
    if options is not None and as_choices(answer) is not None:
        return as_choices(answer) == options
    if is_time(gold.normal):
        return answer.replace(" ", "").casefold() == gold.normal.replace(" ", "").casefold()
    if _BASE.fullmatch(gold.normal):
        return False  # the same digits with another base, or without, are another number
    if gold.value is None and is_phrase(gold.normal):
        return same_phrase(answer, gold.normal)
    return None


@lru_cache(maxsize=4096)
def _is_value(text: str) -> bool:
    """Tell whether a text is a single value although it may hold commas or brackets."""
    normal = normal_form(text)
    return (
        as_number(normal) is not None
        or _measured(text) is not None
        or (is_phrase(normal) and "," not in normal)
    )


def _is_no_value(text: str) -> bool:
    return False
