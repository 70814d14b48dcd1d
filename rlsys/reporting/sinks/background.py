"""A sink in a thread of its own, so that a slow or broken service does not hold up the run.

Every error becomes one warning per run; later errors of the same sink are silent. A service that
answers again gets the rows from then on. If it does not even start, the sink takes nothing.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from rlsys.reporting.sinks.base import Sink

WAITING: Final = 1000
"""Calls that may wait for a slow service; further ones are dropped."""
CLOSE_SECONDS: Final = 60.0
"""How long the end of a run waits for a service to take what is left."""

Call = Callable[[Sink], None]


class BackgroundSink:
    """Calls the sink that `make` returns, in the order of the calls, in one thread."""

    def __init__(self, name: str, make: Callable[[], Sink], warn: Callable[[str], None]) -> None:
        """`name` is the word in reporting.sinks. `warn` shows a sentence to the user."""
        self._name = name
        self._make = make
        self._warn = warn
        self._warned = False
        self._calls: queue.Queue[Call | None] = queue.Queue(WAITING)
        # A daemon, because a service that hangs must not keep the process alive.
        self._thread = threading.Thread(target=self._work, name=f"sink {name}", daemon=True)
        self._thread.start()

    def numbers(self, step: int, numbers: Mapping[str, float]) -> None:
        """Record numbers soon."""
        kept = dict(numbers)
        self._put(lambda sink: sink.numbers(step, kept))

    def episodes(self, step: int, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Record a table of episodes soon."""
        self._put(lambda sink: sink.episodes(step, columns, rows))

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Wait until everything is recorded, but at most `seconds`."""
        with suppress(queue.Full):
            self._calls.put(None, timeout=seconds)
        self._thread.join(seconds)
        if self._thread.is_alive():
            self._tell(f"it did not take everything within {seconds:.0f} s")

    def _put(self, call: Call) -> None:
        try:
            self._calls.put_nowait(call)
        except queue.Full:
            self._tell("it is too slow, so some rows are not sent")

    def _work(self) -> None:
        try:
            sink = self._make()
        except Exception as error:
            self._tell(_sentence(error))
            while self._calls.get() is not None:
                pass
            return
        while (call := self._calls.get()) is not None:
            self._try(call, sink)
        self._try(lambda open_sink: open_sink.close(), sink)

    def _try(self, call: Call, sink: Sink) -> None:
        try:
            call(sink)
        except Exception as error:
            self._tell(_sentence(error))

    def _tell(self, cause: str) -> None:
        if not self._warned:
            self._warned = True
            self._warn(
                f"warning: reporting.sinks {self._name!r} failed ({cause}); the run goes on, and "
                "its folder has everything"
            )


def _sentence(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
