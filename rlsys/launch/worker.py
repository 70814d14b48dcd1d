"""What every process that Ray starts for a run does first."""

from __future__ import annotations

import faulthandler
import os
import signal
from typing import Final

from rlsys.training.stacks import MEMORY_FILE

RUN_MARK: Final = "RLSYS_RUN"
"""Environment variable of every process of a run; its value is that of the driver's process id."""


def prepare_worker() -> None:
    """Write the stacks of all threads to a file in memory whenever SIGUSR1 arrives.

    faulthandler does so from the signal handler itself, also while the main thread waits in a
    library (a collective, a kernel). The watchdog reads the file through /proc.
    """
    if hasattr(os, "memfd_create"):
        file = os.memfd_create(MEMORY_FILE)
        faulthandler.register(signal.SIGUSR1, file=file, all_threads=True)
