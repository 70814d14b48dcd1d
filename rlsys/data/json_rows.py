"""Rows of JSON files: one object a line, a list of objects, an object of columns, indented or not.

Numbers keep the digits they are written with, and a key that occurs twice is refused: Python's
json module would round the one and take the last of the other without a word.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Final, NoReturn

from rlsys.data.cells import Row, WrittenFloat, turns_of
from rlsys.errors import DataError

Lines = Iterator[tuple[int, str]]
"""(number from 1, line with its end) of a text."""


def json_rows(shown: str, in_lines: bool, lines: Lines) -> Iterator[Row]:
    """Yield the rows of a JSON file; `in_lines` says that its name promises one object a line.

    Raises DataError, with file and line, for text that is not JSON and values that are not rows.
    """
    seen: list[tuple[int, str]] = []
    written: list[str] = []
    for number, line in lines:
        seen.append((number, line))
        if line.strip():
            written.append(line.strip())
        if len(written) == 2:
            break
    if not written:
        return
    lines = chain(seen, lines)
    if _is_one_a_line(written, in_lines):
        for number, line in lines:
            if line.strip():
                yield _row(f"{shown}, line {number}", _value(shown, number, line))
    else:
        yield from _Document(shown, "".join(line for _, line in lines)).rows()


def _is_one_a_line(written: list[str], in_lines: bool) -> bool:
    """Decide from the first one or two written lines, for many `.json` files hold JSON lines."""
    first = written[0]
    try:
        value = _DECODER.decode(first)
    except (ValueError, RecursionError):
        # A broken line, unless it can be the start of an indented document.
        return in_lines and not first.startswith("[") and first != "{"
    if len(written) == 1:
        return in_lines and isinstance(value, dict)
    return in_lines or isinstance(value, dict)


class _DuplicateKey(ValueError):
    """An object has one key twice."""


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise _DuplicateKey(next(key for key in keys if keys.count(key) > 1))
    return found


_LONGEST_INT: Final = 4300
"""Digits that Python reads as an integer; a longer one stays text, which is as exact."""


def _integer(digits: str) -> int | str:
    return int(digits) if len(digits) <= _LONGEST_INT else digits


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_unique, parse_int=_integer, parse_float=WrittenFloat
)


def _value(shown: str, number: int, line: str) -> object:
    try:
        return _DECODER.decode(line)
    except (ValueError, RecursionError) as error:
        _refuse(f"{shown}, line {number}", "a line of JSON", line, error)


def _row(place: str, value: object) -> Row:
    if not isinstance(value, dict):
        raise DataError(
            f"{place}: a {type(value).__name__} where a row like "
            '{"problem": ..., "answer": ...} must be; correct or remove it'
        )
    return Row(place, value)


class _Document:
    """A whole JSON text, read from its start to its end with the line it stands at."""

    _SPACE = re.compile(r"[ \t\r\n]*")

    def __init__(self, shown: str, text: str) -> None:
        self._shown = shown
        self._text = text
        self._place = 0
        self._line = 1
        self._skip_to(0)

    def rows(self) -> Iterator[Row]:
        """Yield the rows of a list, of objects one after another, or of one object."""
        if self._next() == "[":
            yield from self._list_rows()
        else:
            line, value = self._line, self._read()
            if not self._next():
                yield from self._object_rows(line, value)
                return
            yield _row(f"{self._shown}, line {line}", value)
            while self._next():
                if self._next() == ",":
                    self._fail("rows have commas between them", "put all rows in [ and ]")
                line = self._line
                yield _row(f"{self._shown}, line {line}", self._read())

    def _list_rows(self) -> Iterator[Row]:
        self._skip_to(self._place + 1)
        while self._next() != "]":
            line = self._line
            yield _row(f"{self._shown}, line {line}", self._read())
            if self._next() == ",":
                self._skip_to(self._place + 1)
                if self._next() == "]":
                    self._fail("a comma before ]", "remove the comma")
            elif self._next() != "]":
                self._fail("no comma or ] after a row", "add it, or fetch the file again")
        self._skip_to(self._place + 1)
        if self._next():
            self._fail("more text after the list", "remove it")

    def _object_rows(self, line: int, value: object) -> Iterator[Row]:
        """Yield the rows of the only object of a file: rows under a key, columns, or one row."""
        place = f"{self._shown}, line {line}"
        values = _row(place, value).values
        tables = {
            key: rows for key, rows in values.items() if isinstance(rows, list) and _is_table(rows)
        }
        if len(tables) > 1 and len(tables) == len(values):
            raise DataError(
                f"{place}: an object of several lists of rows ({', '.join(tables)}); write each "
                "list to a file of its own"
            )
        for key, rows in tables.items():
            if len(values) == 1 or key in _ROW_KEYS:
                for number, row in enumerate(rows, 1):
                    yield _row(f"{self._shown}, row {number} of {key!r}", row)
                return
        columns = {
            key: v for key, v in values.items() if isinstance(v, list) and turns_of(v) is None
        }
        if values and len(columns) == len(values):
            yield from _column_rows(self._shown, columns)
        elif values and all(isinstance(v, dict) for v in values.values()):
            raise DataError(
                f"{place}: an object of objects and not of rows; write a list of rows, from pandas "
                'with to_json(orient="records")'
            )
        else:
            yield Row(place, values)

    def _read(self) -> object:
        try:
            value, end = _DECODER.raw_decode(self._text, self._place)
        except json.JSONDecodeError as error:
            _refuse(f"{self._shown}, line {error.lineno}", "JSON", self._text, error)
        except (ValueError, RecursionError) as error:
            _refuse(f"{self._shown}, line {self._line}", "JSON", "", error)
        self._skip_to(end)
        return value

    def _next(self) -> str:
        return self._text[self._place : self._place + 1]

    def _skip_to(self, place: int) -> None:
        """Go on at the first character from `place` on that is no space."""
        space = self._SPACE.match(self._text, place)
        assert space is not None  # it matches nothing, too
        self._line += self._text.count("\n", self._place, space.end())
        self._place = space.end()

    def _fail(self, reason: str, remedy: str) -> NoReturn:
        raise DataError(f"{self._shown}, line {self._line}: not JSON ({reason}); {remedy}")


_ROW_KEYS: Final = {"data", "rows", "train", "test", "examples", "items", "problems", "questions"}
"""Keys that hold the rows of a file which says something else about them as well."""


def _is_table(value: object) -> bool:
    """Tell whether a value is a list of rows and not a chat."""
    rows = isinstance(value, list) and value and all(isinstance(row, dict) for row in value)
    return bool(rows) and turns_of(value) is None


def _column_rows(shown: str, columns: Mapping[str, list[object]]) -> Iterator[Row]:
    lengths = {key: len(values) for key, values in columns.items()}
    if len(set(lengths.values())) > 1:
        sizes = ", ".join(f"{key} {length}" for key, length in lengths.items())
        raise DataError(f"{shown}: its columns differ in length ({sizes}); correct the file")
    for number, cells in enumerate(zip(*columns.values(), strict=True), 1):
        yield Row(f"{shown}, row {number}", dict(zip(columns, cells, strict=True)))


def _refuse(place: str, what: str, text: str, error: Exception) -> NoReturn:
    """Raise a DataError that says why `text` is not JSON and what to do about it."""
    if isinstance(error, _DuplicateKey):
        raise DataError(f"{place}: key {str(error)!r} occurs twice in one object; keep one of them")
    reason, remedy = str(error), "correct or remove it"
    if isinstance(error, RecursionError):
        reason = "brackets nested too deep"
    elif "\0" in text:
        reason, remedy = "NUL bytes", "the file is damaged, fetch it again"
    elif isinstance(error, json.JSONDecodeError):
        reason, remedy = _json_fault(error.msg, text[error.pos : error.pos + 20], remedy)
    raise DataError(f"{place}: not {what} ({reason}); {remedy}") from error


def _json_fault(message: str, rest: str, remedy: str) -> tuple[str, str]:
    """Return reason and remedy of what the json module says; `rest` is the text from there on."""
    match message, rest[:1]:
        case "Invalid control character at", character if character not in "\r\n":
            reason = f"the control character {character!r} inside a text"
            return reason, f"write it as {json.dumps(character)[1:-1]}"
        case (("Unterminated string starting at" | "Invalid control character at"), _):
            reason = "a text in quotes does not end on its line"
            return reason, r"write a line break inside a text as \n, or fetch a cut file again"
        case "Extra data", ",":
            return "a comma after the object", "remove the comma at the end of every line"
        case "Extra data", "{":
            return "two objects on one line", "put each on a line of its own"
        case _, "'":
            return "single quotes", "write texts in double quotes, from Python with json.dumps"
        case _, "}" | "]":
            return f"a comma before {rest[:1]}, or a missing value", remedy
        case "Expecting value" | "Illegal trailing comma before end of object", _:
            if word := re.match(r"None|True|False|nan|inf", rest):
                return f"Python's {word.group()}", "write null, true or false, with json.dumps"
        case r"Invalid \escape", _:
            return "a single backslash", r"write each backslash inside a text twice: \\frac"
    return message, remedy
