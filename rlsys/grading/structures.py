r"""The shape of an answer: lists, sets, tuples, intervals, unions, inequalities, plus-minus.

`read` turns `tidy` text (rlsys.grading.spelling) into a shape whose leaves are text; `same_shape`
compares two shapes and asks a function about the leaves. Its verdicts have three values: True,
False, and None where only computer algebra can tell.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product

SameLeaf = Callable[[str, str], bool | None]
"""Tells whether an answer leaf equals a gold leaf."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A single value or expression."""

    text: str


@dataclass(frozen=True, slots=True)
class Bag:
    r"""Values without order: the list `1, 3` or the set `\{1, 3\}`."""

    items: tuple[Shape, ...]
    is_set: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """Values in order between brackets: a tuple or an interval, which look alike."""

    items: tuple[Shape, ...]
    brackets: str
    variable: str | None = None
    """The unknown, where an inequality in one unknown was read as an interval."""


@dataclass(frozen=True, slots=True)
class Union:
    """Intervals and sets, joined."""

    items: tuple[Shape, ...]


@dataclass(frozen=True, slots=True)
class Chain:
    """An inequality `a < b <= c`, its smallest side first."""

    sides: tuple[str, ...]
    signs: tuple[str, ...]
    text: str


Shape = Leaf | Bag | Row | Union | Chain

_MAX_ITEMS = 40
_TOKEN = re.compile(
    r"\\[{}]|\\cup(?![a-zA-Z])|\\text\s*\{\s*,?\s*(?:and|or)\s*\}|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])"
    r"|\\(?:begin|end)\s*\{[a-z*]+\}|[和或]|\\.|[(){}\[\],;]",
    re.DOTALL,
)
_OPEN, _CLOSE = {"(", "[", "{", r"\{"}, {")", "]", "}", r"\}"}
_SPACE = re.compile(r"(?:\s|\\;)+")
_SET_BUILDER = re.compile(
    r"(?:\\?\{)?\s*(?:\([^()]*\)|\w+)\s*(?:\\in\s*\\mathbb\{?R\}?\s*)?[|:]([^|]*?)(?:\\?\})?"
)
_MEMBER = re.compile(r"[A-Za-z](?:_\{?\w+\}?)?\s*\\in\s*(?=[(\[\]\\{])(?!\\mathbb)")
_SIGN = re.compile(r"(\\le(?![a-zA-Z])|\\ge(?![a-zA-Z])|<=?|>=?)")
_UNEQUAL = re.compile(r"([A-Za-z])\s*\\ne(?![a-zA-Z])([^,;]+)")
_VARIABLE = re.compile(r"\\?[A-Za-z]+(?:_\{?\w+\}?)?(?:\([a-z]\))?")
_LONG_NAME = re.compile(r"[A-Za-z]{2}")
_DOTS = re.compile(r"\\ldots(?![a-zA-Z])")
_PLUS_MINUS = re.compile(r"\\(pm|mp)(?![a-zA-Z])")


def read(text: str, is_value: Callable[[str], bool]) -> Shape:
    """Return the shape of a text. `is_value` tells of a text that is one value, commas or not."""
    text = _strip(text)
    if is_value(text) or _DOTS.search(text) or r"\begin" in text:
        return Leaf(text)
    if builder := _SET_BUILDER.fullmatch(text):
        inside = _strip(builder[1])
        if _SIGN.search(inside) and "," not in inside:
            return read(inside, is_value)
        if text.startswith(r"\{"):
            return Leaf(text)
    text = _strip(_MEMBER.sub("", text, count=1)) if _MEMBER.match(text) else text
    for separators, make in ((_LIST, Bag), ({r"\cup"}, Union)):
        parts = _split(text, separators)
        if 1 < len(parts) <= _MAX_ITEMS and all(map(_strip, parts)):
            return make(_flat(read(part, is_value) for part in _shared_name(parts)))
    if (inner := _between(text, r"\{", r"\}")) is not None:
        content = read(inner, is_value) if _strip(inner) else Bag(())
        return Bag(content.items if isinstance(content, Bag) else (content,), is_set=True)
    return _bracketed(text, is_value) or _relation(text) or _plus_minus(text)


def _flat(items: Iterable[Shape]) -> tuple[Shape, ...]:
    """Put the two values of a plus-minus into the list that holds it."""
    inner = ((i.items if isinstance(i, Bag) and not i.is_set else (i,)) for i in items)
    return tuple(item for group in inner for item in group)


_LIST = {",", ";", "and"}


def _strip(text: str) -> str:
    while True:
        shorter = text.strip().removeprefix("\\;").removesuffix("\\;").strip(" ,;")
        if shorter == text:
            return text
        text = shorter


def _split(text: str, separators: set[str]) -> list[str]:
    """Split at separators outside all brackets. Half-open intervals may close differently."""
    parts, start, depth = [], 0, 0
    for token in _TOKEN.finditer(text):
        sign = _word(token.group())
        if sign in _OPEN:
            depth += 1
        elif sign in _CLOSE:
            depth -= 1
        elif depth == 0 and sign in separators:
            parts.append(text[start : token.start()])
            start = token.end()
    parts.append(text[start:])
    # `2, 3, and 4` has an empty part before its `and`.
    return [part for part in parts if _strip(part)] if len(parts) > 1 else parts


_JOINING_WORD = re.compile(r"(?:\\text\s*\{[\s,]*)?(?:and|or)\s*\}?|[和或]")


def _word(token: str) -> str:
    """Return "and" for every word that joins values, other tokens unchanged."""
    return "and" if _JOINING_WORD.fullmatch(token) else token


def _shared_name(parts: Sequence[str]) -> list[str]:
    """Take the name off `n = 2, 3, 4`, where it belongs to every value."""
    first, equals, value = parts[0].partition("=")
    if equals and _VARIABLE.fullmatch(_strip(first)) and not any("=" in part for part in parts[1:]):
        return [value, *parts[1:]]
    return list(parts)


def _between(text: str, left: str, right: str) -> str | None:
    """Return the inside of a text that begins with `left` and ends with its matching `right`."""
    if not (text.startswith(left) and text.endswith(right)) or len(text) < len(left + right):
        return None
    inside = text[len(left) : -len(right)]
    depth = 0
    for token in _TOKEN.finditer(inside):
        depth += (token.group() in _OPEN) - (token.group() in _CLOSE)
        if depth < 0:
            return None
    return inside if depth == 0 else None


def _bracketed(text: str, is_value: Callable[[str], bool]) -> Shape | None:
    if len(text) > 4 and text[0] in "]([" and text[-1] in "[)]":
        # Reversed brackets leave an end out, as in `]0,1[`.
        left = "(" if text[0] == "]" else text[0]
        right = ")" if text[-1] == "[" else text[-1]
        inside = _between("(" + text[1:-1] + ")", "(", ")")
        parts = [] if inside is None else _split(inside, {",", ";"})
        if 1 < len(parts) <= _MAX_ITEMS:
            row = Row(tuple(read(part, is_value) for part in parts), left + right)
            return _expanded_row(row)
        if inside is not None and (left, right) == ("(", ")"):
            return read(inside, is_value)
    return None


def _expanded_row(row: Row) -> Shape:
    r"""Write `(\pm 3, \pm 2)` as the list of its four tuples."""
    choices = [
        i.items if isinstance(i, Bag) and not i.is_set and len(i.items) == 2 else (i,)
        for i in row.items
    ]
    if all(len(choice) == 1 for choice in choices) or len(choices) > 4:
        return row
    return Bag(tuple(Row(items, row.brackets) for items in product(*choices)))


def _plus_minus(text: str) -> Shape:
    r"""Write `1 \pm \sqrt{2}` as two values. In one value all signs change together."""
    if not _PLUS_MINUS.search(text):
        return Leaf(text)
    upper = _PLUS_MINUS.sub(lambda match: "+" if match[1] == "pm" else "-", text)
    lower = _PLUS_MINUS.sub(lambda match: "-" if match[1] == "pm" else "+", text)
    return Bag(tuple(Leaf(_strip(sign).removeprefix("+")) for sign in (upper, lower)))


def _relation(text: str) -> Shape | None:
    parts = [_strip(part) for part in _SIGN.split(text)]
    if unequal := _UNEQUAL.fullmatch(text):
        name, value = unequal[1], Leaf(_strip(unequal[2]))
        below = Row((Leaf(r"-\infty"), value), "()", name)
        return Union((below, Row((value, Leaf(r"\infty")), "()", name)))
    signs = [_SIGNS[sign] for sign in parts[1::2]]
    if not signs or not all(parts) or "=" in "".join(parts[::2]):
        return None
    if {sign[0] for sign in signs} == {">"}:
        parts, signs = parts[::-1], [sign.replace(">", "<") for sign in signs[::-1]]
    if {sign[0] for sign in signs} != {"<"}:
        return None
    return Chain(tuple(parts[::2]), tuple(signs), text)


_SIGNS = {"<": "<", "<=": "<=", r"\le": "<=", ">": ">", ">=": ">=", r"\ge": ">="}


def _interval(shape: Shape) -> Shape:
    """Write an inequality in one unknown as the interval it means."""
    match shape:
        case Chain(sides=(low, middle, high), signs=(left, right)) if _is_variable(middle):
            brackets = ("[" if left == "<=" else "(") + ("]" if right == "<=" else ")")
            return Row((Leaf(low), Leaf(high)), brackets, middle)
        case Chain(sides=(low, high), signs=(sign,)) if _is_variable(low):
            return Row((Leaf(r"-\infty"), Leaf(high)), "(]" if sign == "<=" else "()", low)
        case Chain(sides=(low, high), signs=(sign,)) if _is_variable(high):
            return Row((Leaf(low), Leaf(r"\infty")), "[)" if sign == "<=" else "()", high)
        case Bag(items=items, is_set=False) if any(isinstance(item, Chain) for item in items):
            return Union(tuple(_interval(item) for item in items))
    return shape


def _is_variable(text: str) -> bool:
    return _VARIABLE.fullmatch(text) is not None and not (
        _LONG_NAME.match(text) or text.startswith((r"\inf", r"\pi"))
    )


def same_shape(answer: Shape, gold: Shape, same: SameLeaf) -> bool | None:
    """Compare two shapes by the rules of docs/grading.md."""
    match answer, gold:
        case Leaf(text=a), Leaf(text=g):
            return same(a, g)
        case Chain(), Chain():
            return _same_chain(answer, gold, same)
        case (Chain() | Row() | Union() | Bag(), Chain() | Row() | Union() | Bag()):
            if isinstance(answer, Chain | Union) or isinstance(gold, Chain | Union):
                return _same_group(_interval(answer), _interval(gold), same)
            return _same_group(answer, gold, same)
        case (Bag(items=(Leaf(text=a),), is_set=True), Leaf(text=g)):
            return same(a, g)
        case (Leaf(text=a), Bag(items=(Leaf(text=g),), is_set=True)):
            return same(a, g)
    return False


def _same_chain(answer: Chain, gold: Chain, same: SameLeaf) -> bool | None:
    if answer.signs == gold.signs:
        verdict = _all(map(same, answer.sides, gold.sides))
        if verdict is not False:
            return verdict
    if isinstance(_interval(answer), Row) and isinstance(_interval(gold), Row):
        return False  # both are solved for their unknown
    return same(answer.text, gold.text)


def _same_group(answer: Shape, gold: Shape, same: SameLeaf) -> bool | None:
    match answer, gold:
        case Row(), Row():
            names = {answer.variable, gold.variable} - {None}
            alike = answer.brackets == gold.brackets or len(gold.items) > 2
            return alike and len(names) < 2 and _in_order(answer.items, gold.items, same)
        case Bag(), Bag():
            return _in_any_order(answer.items, gold.items, same)
        case ((Union() | Bag(is_set=False)), (Union() | Bag(is_set=False))):
            return _in_any_order(answer.items, gold.items, same)
        case Bag(is_set=False), Row(variable=None, brackets="()"):
            return _in_order(answer.items, gold.items, same)
        case Row(variable=None), Bag(is_set=False):
            listed = answer.brackets == "()" or len(answer.items) > 2
            return listed and _in_any_order(answer.items, gold.items, same)
    return False


def _in_order(answer: Sequence[Shape], gold: Sequence[Shape], same: SameLeaf) -> bool | None:
    if len(answer) != len(gold):
        return False
    return _all(same_shape(a, g, same) for a, g in zip(answer, gold, strict=True))


def _all(verdicts: Iterable[bool | None]) -> bool | None:
    unknown = False
    for verdict in verdicts:
        if verdict is False:
            return False
        unknown |= verdict is None
    return None if unknown else True


def _in_any_order(answer: Sequence[Shape], gold: Sequence[Shape], same: SameLeaf) -> bool | None:
    """Match every answer with a gold of its own. None if that needs a pair that is not decided."""
    if len(answer) != len(gold):
        return False
    table = [[same_shape(a, g, same) for g in gold] for a in answer]
    if _matching([[verdict is True for verdict in row] for row in table]):
        return True
    possible = _matching([[verdict is not False for verdict in row] for row in table])
    return None if possible else False


def _matching(allowed: Sequence[Sequence[bool]]) -> bool:
    """Tell whether every row can have a column of its own (augmenting paths)."""
    row_of: dict[int, int] = {}

    def place(row: int, seen: set[int]) -> bool:
        for column, free in enumerate(allowed[row]):
            if free and column not in seen:
                seen.add(column)
                if column not in row_of or place(row_of[column], seen):
                    row_of[column] = row
                    return True
        return False

    return all(place(row, set()) for row in range(len(allowed)))
