"""The watchdog: a run that makes no progress does not wait for ever.

A process that hangs raises no error, and whoever waits for it waits silently. So everything that
shows progress is reported to `Progress`: training steps, finished groups, sampled tokens. A learner
that hangs is started again like one that died; everything else ends the run with a sentence.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from rlsys.errors import StalledError
from rlsys.spans import span

TICK_S: Final = 5.0
"""Longest sleep of the watchdog."""
SUSPENDED_S: Final = 5.0
"""A sleep that takes this much longer than asked for means that the whole process was suspended."""


@dataclass(slots=True)
class Progress:
    """When the run moved last, and what it waits for."""

    give_up: Callable[[str], bool] = lambda why: False
    """Ends the call that the run waits for, for the reason `why`, if what was called can be started
    again; returns whether there was such a call."""
    _moved_at: float = field(default_factory=time.monotonic)
    _waits: list[str] = field(default_factory=list)

    def moved(self) -> None:
        """Note that something was finished."""
        self._moved_at = time.monotonic()

    @contextmanager
    def waiting_for(self, what: str) -> Iterator[None]:
        """Note what the block waits for, for instance "the learner, in training step 3"."""
        self._waits.append(what)
        try:
            with span(what):
                yield
        finally:
            self._waits.remove(what)
            self.moved()

    @property
    def idle_s(self) -> float:
        """Seconds since the run moved last."""
        return time.monotonic() - self._moved_at

    @property
    def waiting(self) -> bool:
        """True if the run waits for something that has a name."""
        return bool(self._waits)

    @property
    def waits(self) -> str:
        """What the run waits for, the innermost wait last."""
        return ", ".join(self._waits) or "nothing that has a name"


async def watch(
    progress: Progress, limit_s: float, investigate: Callable[[str], Awaitable[Sequence[str]]]
) -> None:
    """Return never; give up the learner or raise StalledError if nothing moves for `limit_s` s.

    Args:
        progress: what the run reports to.
        limit_s: watchdog.progress_s.
        investigate: finds out which processes do not answer and writes their stacks to files; gets
            the sentence about what the run waits for, returns a sentence about every process.
    """
    while True:
        while (left := limit_s - progress.idle_s) > 0:
            await _sleep(min(left, TICK_S), progress)
        waits = f"nothing has moved for watchdog.progress_s {limit_s:g} s; the run waits for "
        waits += progress.waits
        found = await investigate(waits)  # first, because stacks are gone with their processes
        if progress.idle_s < limit_s:  # it has moved meanwhile
            continue
        why = (
            f"{waits}; {'; '.join(found) or 'every process answers'}; the stacks of all processes "
            "on this machine are in the folder stacks of the run; give the same command again to "
            "go on from the last checkpoint"
        )
        if not progress.give_up(why):
            raise StalledError(why)
        progress.moved()


async def _sleep(seconds: float, progress: Progress) -> None:
    """Sleep; if it takes much longer, the run was suspended, and the time does not count."""
    # A scheduler or a user may stop all processes of a run (SIGSTOP, a frozen container) and let
    # them go on hours later. Nothing hangs then, although the clock has gone on.
    began = time.monotonic()
    await asyncio.sleep(seconds)
    if time.monotonic() - began > seconds + SUSPENDED_S:
        progress.moved()
