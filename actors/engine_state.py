"""What an engine's actor knows and reports about its engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TypeVar

from rlsys.errors import EngineDied

T = TypeVar("T")
DEATH_CHECK_S: Final = 0.5
"""How often a call that waits looks whether vLLM's process is still there."""


@dataclass(slots=True, kw_only=True)
class EngineCounts:
    """Totals since the start."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Those that were found in the prefix cache."""
    busy_s: float = 0.0
    """Seconds in which at least one request was under way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """What an actor says about itself at any time."""

    life: str
    """Differs between two processes that Ray started for the same actor."""
    serving: bool
    """True if requests are answered, with weights that were checked."""
    silent_s: float
    """Age of the oldest call that the engine's own processes have not answered yet."""
    finished_tokens: int
    """Sampled tokens of all finished requests."""


class BusyTime:
    """Measures how long at least one of several overlapping requests was under way."""

    def __init__(self) -> None:
        self._running = 0
        self._began = 0.0
        self._ended_s = 0.0
        """Of the times that are over."""

    @contextmanager
    def request(self) -> Iterator[None]:
        """Count the block as one request."""
        if not self._running:
            self._began = time.monotonic()
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1
            if not self._running:
                self._ended_s += time.monotonic() - self._began

    @property
    def seconds(self) -> float:
        """Seconds so far."""
        return self._ended_s + (time.monotonic() - self._began if self._running else 0.0)


def slowest(seconds: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the seconds of the steps of the engine that took longest in all."""
    return max(seconds, key=lambda steps: sum(steps.values()))


def ignore_result(check: asyncio.Task[None]) -> None:
    """Take the result of a check, so that asyncio does not report an error that nobody read."""
    if not check.cancelled():
        check.exception()


async def unless_dead(
    call: Awaitable[T], dead: Callable[[], bool], death: Callable[[], EngineDied]
) -> T:
    """Return the result of `call`, or raise `death` soon after vLLM's process died.

    vLLM itself never answers a call that was under way then.
    """
    answer = asyncio.ensure_future(call)
    try:
        while not (await asyncio.wait({answer}, timeout=DEATH_CHECK_S))[0]:
            if dead():
                raise death()
        return answer.result()
    finally:
        answer.cancel()
