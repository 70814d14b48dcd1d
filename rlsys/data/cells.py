"""From the value in a column of a row to a text: nested columns, chats, numbers, lists of answers.

Whatever would be turned into something else without a word is refused with its place instead.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Final, Literal, NamedTuple

from rlsys.errors import DataError
from rlsys.grading.answers import clean_gold
from rlsys.types import GOLD_SEPARATOR

Speaker = Literal["user", "assistant"]


class Row(NamedTuple):
    """One row of a data set, and where it stands: `svamp.jsonl, line 7`."""

    place: str
    values: dict[str, object]


class WrittenFloat(float):
    """A number that remembers how it was written: `2.50`, `1e-05`, or more digits than fit."""

    __slots__ = ("text",)
    text: str

    def __new__(cls, text: str) -> WrittenFloat:
        """Read `text` as float does, and keep it."""
        number = super().__new__(cls, text)
        number.text = text
        return number


_ABSENT: Final = object()


def value_at(values: Mapping[str, object], column: str) -> tuple[bool, object]:
    """Return whether there is a column, and its value; a dot goes into an object.

    A column named `a.b` comes before key `b` of column `a`. What is inside a null is null.
    """
    if column in values:
        return True, values[column]
    outer, _, inner = column.partition(".")
    while inner:
        value = values.get(outer, _ABSENT)
        if value is None:
            return True, None
        if isinstance(value, Mapping):
            found, nested = value_at(value, inner)
            if found:
                return True, nested
        more, _, inner = inner.partition(".")
        outer = f"{outer}.{more}"
    return False, None


def is_unanswered(value: object) -> bool:
    """Tell whether a cell has no answer: null, NaN (how pandas writes null) or empty text."""
    if isinstance(value, str):
        return not value.strip()
    return (
        value is None or value == [] or (isinstance(value, float | Decimal) and math.isnan(value))
    )


def text_at(row: Row, column: str, value: object, speaker: Speaker, earlier_turns: str) -> str:
    """Return a cell as text with the space around it: a text, a number, or a turn of a chat.

    `speaker` says whose last turn is meant where the cell is a chat.

    Raises DataError, with place and column, for everything else, and for texts that hold a NUL
    character, half a surrogate pair or LaTeX whose backslashes JSON took for escapes.
    """
    turns = turns_of(value)
    if turns is not None:
        value = _turn(row, column, turns, speaker, earlier_turns)
    text = value if isinstance(value, str) else number_text(value)
    if text is None or not text.strip():
        raise DataError(_no_text(row, column, value))
    _check_characters(row, column, text)
    return text


def answer_at(row: Row, column: str, value: object, answers: str) -> str:
    """Return the gold of a cell: `clean_gold` of its text, or of every text of a list.

    `answers` "any" joins a list by GOLD_SEPARATOR (each one is right), "all" by commas.

    Raises DataError as `text_at`, and for an answer without anything to compare with.
    """
    values = value if turns_of(value) is None else None
    if isinstance(values, str) and values.lstrip().startswith('["'):
        values = _json_list(values)
    if not isinstance(values, list | tuple):
        return _gold(row, column, value)
    if not values:
        raise DataError(_no_text(row, column, value))
    golds = [_gold(row, column, item) for item in values]
    return GOLD_SEPARATOR.join(dict.fromkeys(golds)) if answers == "any" else ", ".join(golds)


def number_text(value: object) -> str | None:
    """Return a number in plain digits, exactly as written, or None for what is no finite number.

    Example: number_text(1e-05) == "0.00001", where str would say `1e-05`, which reads as e·1 - 05.
    """
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        # An integer of more than 4300 digits has no str in Python, a Decimal has.
        return str(value) if value.bit_length() < 10_000 else f"{Decimal(value):f}"
    if isinstance(value, float):
        value = Decimal(value.text if isinstance(value, WrittenFloat) else repr(value))
    if not isinstance(value, Decimal) or not value.is_finite():
        return None
    # 1e999999999 written out would fill the memory; beyond this a number keeps its exponent.
    return f"{value:f}" if abs(value.adjusted()) <= _LONGEST_NUMBER else str(value)


_LONGEST_NUMBER: Final = 4300
_SPEAKERS: Final = {"human": "user", "gpt": "assistant"}
"""Names of the ShareGPT format for those of the OpenAI format."""


class Turn(NamedTuple):
    """One message of a chat."""

    speaker: str
    content: object


_CHAT_TEXT: Final = re.compile(r'\s*\[\s*\{\s*"(?:role|content|from|value)"')


def turns_of(value: object) -> list[Turn] | None:
    """Return the messages of a chat (`role` and `content`, or `from` and `value`), else None.

    A chat may be written as JSON text, which is how CSV files hold one.
    """
    if isinstance(value, str) and _CHAT_TEXT.match(value):
        value = _json_list(value)
    if not isinstance(value, list | tuple) or not value:
        return None
    turns = []
    for message in value:
        if not isinstance(message, Mapping):
            return None
        speaker = message.get("role") or message.get("from")
        if not isinstance(speaker, str):
            return None
        content = message["content"] if "content" in message else message.get("value")
        turns.append(Turn(_SPEAKERS.get(speaker, speaker), content))
    return turns


def _turn(row: Row, column: str, turns: Sequence[Turn], speaker: Speaker, earlier: str) -> object:
    """Return the last user turn, or the last assistant turn, which must come after it."""
    last = max((i for i, turn in enumerate(turns) if turn.speaker == "user"), default=None)
    if speaker == "assistant":
        replies = [t for t in turns[0 if last is None else last :] if t.speaker == "assistant"]
        if replies:
            return _content(row, column, replies[-1].content)
    elif last is not None:
        before = dict.fromkeys(turn.speaker for turn in turns[:last])
        if before and earlier == "refuse":
            raise DataError(
                f"{row.place}: the chat in column {column!r} has {' and '.join(before)} turns "
                "before its last user turn, which a problem has no place for; set "
                "data.*.earlier_turns=drop to leave them out, and put a system text that all rows "
                "share into data.prompt.system"
            )
        return _content(row, column, turns[last].content)
    raise DataError(
        f"{row.place}: the chat in column {column!r} has no {speaker} turn"
        f"{' after its last user turn' * (speaker == 'assistant')}; name another column"
    )


def _content(row: Row, column: str, content: object) -> object:
    """Return the text of a message, joined where it is a list of text parts."""
    if not isinstance(content, list | tuple):
        return content
    parts = [part.get("text") if isinstance(part, Mapping) else part for part in content]
    texts = [part for part in parts if isinstance(part, str)]
    if len(texts) == len(parts):
        return "".join(texts)
    raise DataError(
        f"{row.place}: a message in column {column!r} holds more than text (an image or a tool "
        "call); remove the row"
    )


def _json_list(text: str) -> object:
    """Return the list that a cell holds as JSON text, as CSV files and verl's do, or the text."""
    try:
        values = json.loads(text, parse_float=WrittenFloat)
    except ValueError:
        return text
    return values if isinstance(values, list) else text


def _gold(row: Row, column: str, value: object) -> str:
    text = text_at(row, column, value, "assistant", "drop").strip()
    if _CONTROL.search(text):
        raise DataError(
            f"{row.place}: column {column!r} {shortened(text)} holds a control character; correct "
            "or remove the row"
        )
    if text.startswith("['"):
        raise DataError(
            f"{row.place}: column {column!r} {shortened(text)} is a Python list written as text; "
            "write the column as lists, or as text with json.dumps"
        )
    gold = clean_gold(text)
    if not gold:
        raise DataError(
            f"{row.place}: column {column!r} {shortened(text)} holds no answer to compare with; "
            "remove the row or name another data.*.answer_column"
        )
    return gold


_CONTROL: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_EATEN_LATEX: Final = re.compile(
    "\f(?:rac|orall|box)|\b(?:oxed|eta|egin|inom|ar)|\t(?:imes|heta|ext\\{|frac)|\r(?:ight|ho)"
)
r"""What is left of \frac, \boxed, \times or \right where JSON text wrote one backslash."""


def _check_characters(row: Row, column: str, text: str) -> None:
    if text.isascii():
        fault = "a NUL character" if "\0" in text else None
    else:
        fault = _unicode_fault(text)
    if fault:
        raise DataError(f"{row.place}: column {column!r} holds {fault}; correct or remove the row")
    if eaten := _EATEN_LATEX.search(text):
        letter = {"\f": "f", "\b": "b", "\t": "t", "\r": "r"}[eaten.group()[0]]
        command = f"\\{letter}{eaten.group()[1:]}".rstrip("{")
        raise DataError(
            f"{row.place}: column {column!r} holds a control character where {command} was meant; "
            f"write each backslash inside JSON text twice: \\{command}"
        )


def _unicode_fault(text: str) -> str | None:
    if "\0" in text:
        return "a NUL character"
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"half a surrogate pair (\\u{ord(text[error.start]):04x}), which is no character"
    return None


def _no_text(row: Row, column: str, value: object) -> str:
    remedy = "correct or remove the row"
    if isinstance(value, bool):
        remedy = f'write the text that is meant, for instance "{"yes" if value else "no"}"'
    elif isinstance(value, Mapping) and value:
        remedy = f"name what is inside it, for instance {column}.{next(iter(value))}"
    elif isinstance(value, list | tuple):
        remedy = "name a column of single values"
    return (
        f"{row.place}: column {column!r} must hold a text or a number, not {shortened(value)}; "
        f"{remedy}"
    )


def shortened(value: object) -> str:
    """Return `value` as Python writes it, cut to 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
