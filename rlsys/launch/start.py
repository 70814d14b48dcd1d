"""The start of a run: what it still waits for, and how long each of its parts took."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from typing import Final

from rlsys.training.watchdog import Progress

TELL_S: Final = 30.0
"""How often a line tells what the start waits for."""
UNTOLD_S: Final = 0.5
"""What took less time is left out of the line with all parts."""


class Start:
    """Measures the parts of a start. Parts may overlap: learner and engines load side by side."""

    def __init__(
        self, progress: Progress, tell: Callable[[str], None], began: float | None = None
    ) -> None:
        """Begin.

        Args:
            progress: gets every part as something that the run waits for.
            tell: takes lines for the user.
            began: when the command began, as time.monotonic(); None means now.
        """
        self.progress = progress
        self.tell = tell
        self._began = time.monotonic() if began is None else began
        self._parts = {"command": _in_words(self._seconds, {})}
        """Seconds of every part in words; empty while it is not done."""
        self._up_s: float | None = None
        self._telling: asyncio.Task[None] | None = None

    @property
    def _seconds(self) -> float:
        """Since the start of the command."""
        return time.monotonic() - self._began

    @contextmanager
    def part(self, name: str, *, waits: bool = True) -> Iterator[dict[str, float]]:
        """Measure the block.

        Args:
            name: of the part, for instance "engines".
            waits: False for a block that names by itself what it waits for.

        Yields:
            A dictionary for the seconds of the steps of the part, which the block may fill.
        """
        began, steps = time.monotonic(), dict[str, float]()
        self._parts.setdefault(name, "")
        with self.progress.waiting_for(f"the {name}") if waits else nullcontext():
            yield steps
        self._parts[name] = _in_words(time.monotonic() - began, steps)

    @asynccontextmanager
    async def telling(self) -> AsyncIterator[None]:
        """Tell every TELL_S seconds what the run waits for, to `ready` or the end of the block."""
        telling = self._telling = asyncio.create_task(self._tell_waits())
        try:
            yield
        finally:
            telling.cancel()

    async def _tell_waits(self) -> None:
        while True:
            await asyncio.sleep(TELL_S)
            if self.progress.waiting:
                self.tell(f"starting for {self._seconds:.0f} s; waiting for {self.progress.waits}")

    def up(self) -> None:
        """Tell how long the parts took; only the first call does so."""
        if self._up_s is None:
            self._up_s = self._seconds
            parts = ", ".join(f"{name} {took}" for name, took in self._parts.items() if took)
            self.tell(f"started in {self._up_s:.0f} s: {parts}")

    def ready(self) -> None:
        """End `telling` after `up` and the first evaluation, if there is one."""
        if self._telling is None or self._up_s is None:
            return
        self._telling.cancel()
        self._telling = None
        evaluation_s = self._seconds - self._up_s
        if evaluation_s >= UNTOLD_S:
            self.tell(
                f"first evaluation {evaluation_s:.0f} s; training begins {self._seconds:.0f} s "
                "after the command"
            )


def _in_words(seconds: float, steps: dict[str, float]) -> str:
    if seconds < UNTOLD_S:
        return ""
    known = [f"{name} {_rounded(s)}" for name, s in steps.items() if s >= UNTOLD_S]
    return _rounded(seconds) + (f" ({', '.join(known)})" if known else "")


def _rounded(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
