"""ledger.jsonl in the run directory: one line per group of every training step.

    {"step":3,"group":8,"problem":"p8","fate":"trained","reason":null,"sampled":[2,2],"tokens":412,
     "length":41.5,"score":0.25,"admitted":12}                                      (on one line)

The lines of a step are on the disk before the step's checkpoint. A run that is resumed after step N
drops the lines after N, as in metrics.jsonl, so a group that is trained again has one line.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import msgspec

from rlsys.errors import RunFolderError
from rlsys.reporting.metrics_file import drop_rows_after, read_rows
from rlsys.training.durable import naming
from rlsys.training.ledger import GroupFate

LEDGER = "ledger.jsonl"


class LedgerSink:
    """Appends lines to `run_dir`/ledger.jsonl; a line survives a kill or a power cut."""

    def __init__(self, run_dir: Path, resumed_step: int = 0) -> None:
        """Drop the lines of the steps after `resumed_step`; the first line opens the file."""
        self._path = run_dir / LEDGER
        self._file: BinaryIO | None = None
        if self._path.exists():
            drop_rows_after(self._path, resumed_step)

    def write(self, fates: Sequence[GroupFate]) -> None:
        """Append one line per group."""
        with naming(self._path):
            if self._file is None:
                self._file = self._path.open("ab")
            self._file.write(b"".join(msgspec.json.encode(fate) + b"\n" for fate in fates))
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file, if it is open."""
        # What is left to write is what a full disk refused, and that error was raised already.
        with suppress(OSError):
            if self._file is not None:
                self._file.close()


def read_ledger(run_dir: Path) -> list[GroupFate]:
    """Return all whole lines of the ledger of a run, in the order they were written.

    Raises RunFolderError if there is no ledger, or a line that is none.
    """
    path = run_dir / LEDGER
    if not path.is_file():
        raise RunFolderError(
            f"{path} does not exist; give the run directory of `rlsys train`, after its first step"
        )
    try:
        return [msgspec.convert(row, GroupFate) for row in read_rows(path)]
    except msgspec.ValidationError as error:
        raise RunFolderError(
            f"{path} has a line that is no fate of a group ({error}); restore it from a backup"
        ) from error
