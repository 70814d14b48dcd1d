"""Rows of CSV and TSV files: every cell stays the text it is, so `007` and `1.50` are kept."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from itertools import chain
from typing import Literal

from rlsys.data.cells import Row
from rlsys.errors import DataError

_LONGEST_CELL = 2**31 - 1
"""Characters; the csv module's own limit of 131,072 is less than some problems with solutions."""


def csv_rows(
    shown: str, kind: Literal["CSV", "TSV"], lines: Iterator[tuple[int, str]]
) -> Iterator[Row]:
    """Yield the rows below the header line; a row may span lines, its place is its first one.

    Raises DataError, with file and line, for a header that names a column twice or not at all, a
    row with more or fewer cells than the header, and quotes that do not match.
    """
    first = next(((number, line) for number, line in lines if line.strip()), None)
    if first is None:
        return
    skipped = first[0] - 1
    csv.field_size_limit(_LONGEST_CELL)
    texts = (line for _, line in chain([first], lines))
    delimiter = "\t" if kind == "TSV" else _delimiter(first[1])
    reader = csv.reader(texts, delimiter=delimiter, strict=True)
    header: list[str] = []
    start = 1
    while True:
        place = f"{shown}, line {skipped + start}"
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise DataError(_not_a_row(place, kind, error)) from error
        if cells is None:
            return
        if not header:
            header = _header(place, cells)
        elif cells:
            yield Row(place, dict(zip(header, _checked(place, header, cells), strict=True)))
        start = reader.line_num + 1


def _not_a_row(place: str, kind: str, error: csv.Error) -> str:
    if "new-line character" in str(error):
        return f"{place}: a carriage return without a line feed; save the file with \\n line ends"
    return (
        f"{place}: not a row of {kind} ({error}); put a cell with quotes or line breaks in double "
        'quotes and write each quote inside it twice ("")'
    )


def _delimiter(header: str) -> str:
    """Return `,`, or what separates a header without any: spreadsheets also write `;` and tabs."""
    return next((mark for mark in ",;\t" if mark in header), ",")


def _header(place: str, cells: list[str]) -> list[str]:
    names = [cell.strip() for cell in cells]
    twice = [name for i, name in enumerate(names) if name and name in names[:i]]
    if twice:
        raise DataError(f"{place}: the header names column {twice[0]!r} twice; rename one of them")
    # pandas writes its index as a first column without a name.
    return [name or f"column {number}" for number, name in enumerate(names, 1)]


def _checked(place: str, header: list[str], cells: list[str]) -> list[str]:
    if len(cells) != len(header):
        raise DataError(
            f"{place}: {len(cells)} cells where the header has {len(header)} columns; put a cell "
            "that holds the separator in double quotes"
        )
    return cells
