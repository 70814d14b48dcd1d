"""Signals that end a run early: Ctrl-C, SIGTERM of a scheduler, SIGHUP of a closed terminal."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final, NoReturn

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def interrupt_on_signals() -> None:
    """Let every stop signal raise KeyboardInterrupt, which the command line turns into exit 130.

    Call it again after code that installs handlers of its own: ray.init does for SIGTERM, and an
    event loop removes the handlers that were added to it when it closes.
    """
    for sign in _wanted():
        signal.signal(sign, _interrupt)


def renew_handlers() -> None:
    """Install the handlers of stop signals again, after C code has replaced them unseen."""
    for sign in STOP_SIGNALS:
        signal.signal(sign, signal.getsignal(sign))


def ignore_signals() -> None:
    """Let no stop signal change the exit code of a command that is about to end.

    Python puts the system's default in the place of its own handlers when it takes itself down,
    which lasts seconds once torch and Ray are imported; a scheduler that asks twice would kill the
    command there. Ignored signals stay ignored.
    """
    for sign in STOP_SIGNALS:
        signal.signal(sign, signal.SIG_IGN)


def call_on_signals(stop: Callable[[], None]) -> None:
    """Let every stop signal call `stop` in the running event loop."""
    for sign in _wanted():
        asyncio.get_running_loop().add_signal_handler(sign, stop)


@contextmanager
def children_in_own_session() -> Iterator[None]:
    """Start every child process of the block in a session of its own.

    Ctrl-C, `timeout` and many schedulers signal the whole process group of a command. Ray's own
    processes would end at once, and with them the actors that still have to write a checkpoint.
    It works for children that are started with a preexec_fn, as Ray does: only then does Python
    run the hooks of os.register_at_fork. Hooks cannot be removed, so this one looks at `inside`.
    """
    inside = True
    parent = os.getpid()

    def detach() -> None:
        if inside and os.getppid() == parent:
            os.setsid()

    os.register_at_fork(after_in_child=detach)
    try:
        yield
    finally:
        inside = False


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _wanted() -> list[signal.Signals]:
    """Return the stop signals, without SIGHUP where nohup told the command to ignore it."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [s for s in STOP_SIGNALS if s is not signal.SIGHUP or not ignored]
