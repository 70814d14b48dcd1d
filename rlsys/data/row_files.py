"""Rows of data files: JSON lines (plain or gzip), a JSON array, Parquet.

JSON lines are read here and not by a library, because a refusal must name file and line.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlsys.errors import DataError

SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".parquet")


def iterate_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line, row) of a file; lines count from 1, and blank ones are passed over.

    Of a JSON array and of Parquet the line is the row's number. Raises DataError for a missing
    file, an unknown kind of file, or the first malformed row.
    """
    if not path.is_file():
        raise DataError(
            f"data file {str(path)!r} does not exist; correct data.*.path, or make the file (a "
            "recipe that reads generated data says how in its first lines)"
        )
    name = path.name
    if name.endswith(".parquet"):
        yield from _parquet_rows(path)
    elif name.endswith((".jsonl", ".jsonl.gz")):
        yield from _json_lines(path)
    elif name.endswith(".json"):
        yield from _json_array(path) if _starts_array(path) else _json_lines(path)
    else:
        raise DataError(
            f"data file {str(path)!r} is of no known kind; use one of {', '.join(SUFFIXES)}"
        )


def _json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    line = 0
    try:
        with gzip.open(path) if path.name.endswith(".gz") else path.open("rb") as file:
            for line, raw in enumerate(file, 1):
                if raw.strip():
                    yield line, _json_row(raw, path, line)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"{path}, line {line + 1}: cannot be read ({error}); fetch the file again"
        ) from error


def _json_row(raw: bytes, path: Path, line: int) -> dict[str, Any]:
    try:
        row = json.loads(raw.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{path}, line {line}: not a line of JSON ({error}); correct or remove it"
        ) from error
    return _object(row, path, line)


def _object(row: Any, path: Path, line: int) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise DataError(
            f"{path}, line {line}: a {type(row).__name__} where a row like "
            '{"problem": ..., "answer": ...} must be; correct or remove it'
        )
    return row


def _starts_array(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(1024).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"[")


def _json_array(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        rows = json.loads(path.read_text("utf-8-sig"))
    except json.JSONDecodeError as error:
        raise DataError(
            f"{path}, line {error.lineno}: not JSON ({error.msg}); correct the file"
        ) from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON ({error}); correct the file") from error
    for number, row in enumerate(rows, 1):
        yield number, _object(row, path, number)


def _parquet_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    import pyarrow
    from pyarrow import parquet

    try:
        batches = parquet.ParquetFile(path).iter_batches()
        rows = (row for batch in batches for row in batch.to_pylist())
        yield from enumerate(rows, 1)
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(
            f"data file {str(path)!r} is not readable Parquet ({error}); fetch the file again"
        ) from error
