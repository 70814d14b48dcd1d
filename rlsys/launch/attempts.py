"""`rlsys train --retries N`: start a failed run again, in a process of its own each time.

Every attempt is a child process, so that one that is killed (out of memory, kill -9) is noticed and
started again as well. It goes on from the newest checkpoint, as the same command always does.
"""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import FrameType
from typing import Final

from rlsys.signals import STOP_SIGNALS

DONE: Final = 0
WRONG_INPUT: Final = 2
STOPPED: Final = 130
FINAL: Final = (DONE, WRONG_INPUT, STOPPED)
"""Exit codes after which another attempt would do the same, or was not asked for."""
PAUSE_SECONDS: Final = 5.0
"""Before another attempt: Ray needs a moment to end the actors of a driver that was killed."""
PR_SET_PDEATHSIG: Final = 1
"""Of Linux' prctl: the signal that a process gets when its parent has died."""


class Attempts:
    """Runs a command until it ends by itself, or until no retry is left."""

    def __init__(self, command: Sequence[str], tell: Callable[[str], None]) -> None:
        """`tell` takes one sentence for the user before another attempt."""
        self._command = command
        self._tell = tell
        self._child: subprocess.Popen[bytes] | None = None
        self._stopped = False

    def run(self, retries: int) -> int:
        """Return the exit code of the last attempt; 128 + N if signal N killed it."""
        for number in STOP_SIGNALS:
            signal.signal(number, self._forward)
        for left in range(retries, -1, -1):
            code = self._attempt()
            if self._stopped:
                # A second signal can interrupt the child while it ends, and change its exit code.
                return code if code == DONE else STOPPED
            if code in FINAL or not left:
                break
            self._tell(
                f"the run ended with exit code {code} and is started again in {PAUSE_SECONDS:g} s; "
                f"retries left: {left - 1}"
            )
            if self._stopped_in_pause():
                return STOPPED
        return code

    def _attempt(self) -> int:
        self._child = subprocess.Popen(self._command, preexec_fn=_stop_with_parent)
        if self._stopped:  # the signal came while the child was being started
            self._child.terminate()
        code = self._child.wait()
        return code if code >= 0 else 128 - code

    def _stopped_in_pause(self) -> bool:
        # Short sleeps, because a signal does not end one whose handler raises nothing.
        end = time.monotonic() + PAUSE_SECONDS
        while time.monotonic() < end and not self._stopped:
            time.sleep(0.1)
        return self._stopped

    def _forward(self, number: int, frame: FrameType | None) -> None:
        self._stopped = True
        if self._child is not None:
            with suppress(ProcessLookupError):
                self._child.send_signal(number)


def train_command(words: Sequence[str]) -> list[str]:
    """The command of one attempt; `words` are those of the user, without the option."""
    return [sys.executable, "-m", "rlsys", "train", *words]


_libc = ctypes.CDLL(None)


def _stop_with_parent() -> None:
    """Let the child save a checkpoint and end if its parent is killed: nobody would wait for it."""
    if hasattr(_libc, "prctl"):
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
