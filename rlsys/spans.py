"""Spans: what this process did, from when to when, recorded while the trace of a run is taken.

Recording is off until `start` is called, and a span is then one test of a variable. rlsys.launch
collects the spans of all processes and writes them as a trace.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple


class Span(NamedTuple):
    """One piece of work."""

    name: str
    begin_s: float
    """Unix time, so that spans of several processes fit together."""
    seconds: float


_recorded: list[Span] | None = None
"""None while recording is off."""


def start() -> None:
    """Record spans from now on, in this process."""
    global _recorded
    _recorded = []


def take() -> list[Span]:
    """End the recording and return the spans that ended meanwhile."""
    global _recorded
    spans, _recorded = _recorded or [], None
    return spans


def ended(name: str, seconds: float) -> None:
    """Record a span that ends now."""
    if _recorded is not None:
        _recorded.append(Span(name, time.time() - seconds, seconds))


@contextmanager
def span(name: str) -> Iterator[None]:
    """Record the time of the block."""
    began = time.monotonic()
    try:
        yield
    finally:
        ended(name, time.monotonic() - began)
