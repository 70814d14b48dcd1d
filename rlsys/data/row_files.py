"""Rows of data files, each with the place that a refusal names.

What a file holds decides, then its name: gzip, Parquet and Arrow are known by their first bytes.
JSON and CSV are read by the standard library and not by `datasets`, which guesses types (`007`
becomes 7, a mixed column fails), keeps the last of two equal keys and knows no line numbers.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from os import PathLike, fspath
from typing import Final, TypeVar

from rlsys.data.cells import Row
from rlsys.data.csv_rows import csv_rows
from rlsys.data.json_rows import json_rows
from rlsys.data.locations import DataFile, FileKind, find_files
from rlsys.data.table_rows import binary_rows, saved_rows
from rlsys.errors import DataError

ReadT = TypeVar("ReadT")


def iterate_rows(path: str | PathLike[str]) -> Iterator[Row]:
    """Yield the rows of the files that `path` names: a file, a folder, a glob or an fsspec URL.

    Raises DataError for what is missing or unreadable, or the first malformed row.
    """
    for file in find_files(fspath(path)):
        yield from file_rows(file)


def file_rows(file: DataFile) -> Iterator[Row]:
    """Yield the rows of one file. Blank lines are passed over and counted.

    Raises DataError, with file and line (the row's number in Parquet and Arrow).
    """
    if file.kind == "folder of datasets.save_to_disk":
        yield from saved_rows(file)
        return
    with _opened(file) as stream:
        head = _guarded(file, lambda: stream.read(_HEAD))
        kind = _kind_of_content(file, head)
        _guarded(file, lambda: stream.seek(0))
        match kind:
            case "Parquet" | "Arrow":
                yield from binary_rows(file.shown, kind, stream)
            case "CSV" | "TSV":
                lines = _decoded_lines(file, stream, head)
                yield from csv_rows(file.shown, kind, lines)
            case _:
                lines = _decoded_lines(file, stream, head)
                yield from json_rows(file.shown, kind == "JSON lines", lines)


_HEAD: Final = 1024
"""Bytes at the start of a file that tell what it holds."""

_ARCHIVES: Final = {
    b"PK\x03\x04": "a zip archive",
    b"\x1f\x8b": "gzip once more",
    b"\x80\x04": "a Python pickle",
    b"BZh": "a bzip2 file",
    b"\xfd7zXZ": "an xz file",
    b"\x28\xb5\x2f\xfd": "a zstd file",
}
_WEB_PAGE: Final = re.compile(rb"(?:\xef\xbb\xbf)?\s*<(?:!doctype|html|head|body|\?xml)", re.I)


@contextmanager
def _opened(file: DataFile) -> Iterator[io.BufferedIOBase]:
    """Open a file for reading bytes, through gzip where it begins as gzip does."""
    with ExitStack() as closing:
        stream = closing.enter_context(
            _guarded(file, lambda: file.filesystem.open(file.path, "rb"))
        )
        start = _guarded(file, lambda: stream.read(2))
        _guarded(file, lambda: stream.seek(0))
        zipped = start == b"\x1f\x8b"
        yield closing.enter_context(gzip.GzipFile(fileobj=stream)) if zipped else stream


def _guarded(file: DataFile, read: Callable[[], ReadT], line: int | None = None) -> ReadT:
    """Call `read`; what goes wrong below the format is a refusal of the file."""
    try:
        return read()
    except (OSError, EOFError, zlib.error) as error:
        place = file.shown if line is None else f"{file.shown}, line {line}"
        reason = " ".join(str(error).split())
        remedy = "allow it" if isinstance(error, PermissionError) else "fetch the file again"
        raise DataError(f"{place}: cannot be read ({reason}); {remedy}") from error


def _kind_of_content(file: DataFile, head: bytes) -> FileKind:
    if head.startswith(b"version https://git-lfs"):
        raise DataError(
            f"{file.shown}, line 1: a Git LFS pointer and not the data; run `git lfs pull` in its "
            "repository, or download the file itself"
        )
    if _WEB_PAGE.match(head):
        raise DataError(
            f"{file.shown}, line 1: a web page (HTML or XML) and not data; the download was "
            "answered by an error or preview page, so fetch the raw file"
        )
    for magic, name in _ARCHIVES.items():
        if head.startswith(magic):
            raise DataError(f"{file.shown}: {name} and not {file.kind}; unpack or convert it")
    if head.startswith(b"PAR1"):
        return "Parquet"
    if head.startswith((b"ARROW1", b"\xff\xff\xff\xff")):
        return "Arrow"
    if file.kind in ("Parquet", "Arrow"):
        raise DataError(
            f"data file {file.shown!r} is not readable {file.kind} (it begins with "
            f"{head[:16]!r}); fetch the file again or rename it to what it holds"
        )
    return file.kind


def _decoded_lines(
    file: DataFile, stream: io.BufferedIOBase, head: bytes
) -> Iterator[tuple[int, str]]:
    """Yield (number from 1, line with its end) of a text in UTF-8, UTF-16 or UTF-32."""
    encoding = json.detect_encoding(head)
    if not encoding.startswith("utf-8"):
        data = _guarded(file, stream.read)
        try:
            text = data.decode(encoding)
        except UnicodeDecodeError as error:
            line = data[: error.start].decode(encoding, "ignore").count("\n") + 1
            raise DataError(_not_text(file, line, encoding.upper(), error)) from error
        yield from enumerate(io.StringIO(text.removeprefix("\ufeff"), newline="\n"), 1)
        return
    number = 1
    while raw := _guarded(file, stream.readline, number):
        try:
            # Files that were joined have a byte order mark at every former start.
            yield number, raw.decode("utf-8").removeprefix("\ufeff")
        except UnicodeDecodeError as error:
            raise DataError(_not_text(file, number, "UTF-8", error)) from error
        number += 1


def _not_text(file: DataFile, line: int, encoding: str, error: UnicodeDecodeError) -> str:
    return (
        f"{file.shown}, line {line}: byte 0x{error.object[error.start]:02x} is not {encoding} "
        "text; save the file as UTF-8 (from Latin-1: iconv -f latin1 -t utf-8)"
    )
