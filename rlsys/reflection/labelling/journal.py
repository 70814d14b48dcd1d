"""Append-only JSON lines files. Long work stores its results there, and a restart skips them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rlsys.data.row_files import iterate_rows
from rlsys.errors import DataError


class Journal:
    """A file of rows with an `id` each. Each row is written as soon as it is appended."""

    def __init__(self, path: Path) -> None:
        """Open or create `path`. An incomplete last line, left by a killed process, is removed."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        if path.is_file():
            # Bytes and not text: a killed process may have stopped inside a UTF-8 character.
            text = path.read_bytes()
            whole = text.rfind(b"\n") + 1
            if whole < len(text):
                with path.open("r+b") as file:
                    file.truncate(whole)
        self._done = {row["id"] for row in read_journal(path)} if path.is_file() else set()

    def __contains__(self, row_id: str) -> bool:
        return row_id in self._done

    def __len__(self) -> int:
        return len(self._done)

    def append(self, row: Mapping[str, object]) -> None:
        """Add a row with a new `id`."""
        # Opened for every row: closing the file writes the row out, so a later kill cannot lose it.
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
        self._done.add(row["id"])


def read_journal(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a journal. Raises DataError, with file and line, for a row without `id`."""
    for place, row in iterate_rows(path):
        if not isinstance(row.get("id"), str):
            raise DataError(f"{place}: a row without id; remove the file to start again")
        yield row
