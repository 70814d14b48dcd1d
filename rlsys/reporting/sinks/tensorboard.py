"""Event files for TensorBoard in the run folder.

They belong to the run folder: as with every other file in it, a disk that is full or cannot be
written ends the run, and the same command goes on from the last checkpoint.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from rlsys.training.durable import missing_bytes, naming
from rlsys.training.run_folder import TENSORBOARD

EVENT_BYTES: Final = 256
"""More than TensorBoard needs for a number with its name."""


class TensorBoardSink:
    """Appends numbers to `run_dir`/tensorboard; steps after `resumed_step` are dropped."""

    def __init__(self, run_dir: Path, resumed_step: int = 0) -> None:
        # The import takes seconds (torch) and is only worth them for a run.
        from torch.utils.tensorboard import SummaryWriter

        self._folder = run_dir / TENSORBOARD
        purge_step = resumed_step + 1 if resumed_step else None
        with naming(self._folder):
            self._events = SummaryWriter(str(self._folder), purge_step=purge_step)

    def numbers(self, step: int, numbers: Mapping[str, float]) -> None:
        """Write one event per number."""
        with naming(self._folder):
            # TensorBoard writes in a thread, which prints a traceback when the disk is full.
            if missing_bytes(self._folder, EVENT_BYTES * len(numbers)):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            for name, value in numbers.items():
                # TensorBoard takes no half of a surrogate pair, which a server's name may hold.
                self._events.add_scalar(name.encode("utf-8", "replace").decode(), value, step)
            self._events.flush()

    def episodes(self, step: int, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Do nothing: TensorBoard has no tables, and samples/ has the episodes."""

    def close(self) -> None:
        """Close the file."""
        # What is left to write is what a full disk refused, and that error was raised already.
        with suppress(OSError):
            self._events.close()
