"""Spans of a process, and how they become a trace."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import RayActorError

from rlsys import spans
from rlsys.launch.trace import Tracer, trace_events
from rlsys.spans import Span


def test_spans_are_recorded_between_start_and_take() -> None:
    with spans.span("before"):
        pass
    spans.start()
    with pytest.raises(ValueError, match="fails"), spans.span("outer"):
        with spans.span("inner"):
            pass
        raise ValueError("fails")
    found = spans.take()
    assert [span.name for span in found] == ["inner", "outer"]
    assert found[1].begin_s <= found[0].begin_s
    with spans.span("after"):
        pass
    assert spans.take() == []


def test_a_trace_lacks_actors_that_died(tmp_path: Path) -> None:
    class Call:
        def __init__(self, dead: bool) -> None:
            self._dead = dead

        async def remote(self, function: Callable[..., Any], profiled: bool) -> Any:
            if self._dead:
                raise RayActorError
            return function(self, False)

    def actor(*, dead: bool) -> Any:
        return SimpleNamespace(__ray_call__=Call(dead))

    told: list[str] = []
    actors = {"learner rank 0": actor(dead=False), "engine 0": actor(dead=True)}
    tracer = Tracer(tmp_path, 1, lambda: actors, told.append)

    async def steps() -> None:
        for step in (5, 6, 7):
            await tracer.after_step(step)

    asyncio.run(steps())
    events = json.loads((tmp_path / "trace" / "spans.json").read_text())["traceEvents"]
    assert [e["args"]["name"] for e in events] == ["driver", *actors]
    (sentence,) = told
    assert "the trace of steps 6 to 6 is in" in sentence


def test_overlapping_spans_are_asynchronous_events_of_their_process() -> None:
    events = trace_events({"driver": [], "engine 0": [Span("a", 2.0, 0.5), Span("b", 2.25, 1.0)]})
    assert [e["args"]["name"] for e in events if e["ph"] == "M"] == ["driver", "engine 0"]
    pairs = [(e["name"], e["ph"], e["ts"], e["id"], e["pid"]) for e in events if e["ph"] != "M"]
    assert pairs == [
        ("a", "b", 2_000_000.0, "1.0", 1),
        ("a", "e", 2_500_000.0, "1.0", 1),
        ("b", "b", 2_250_000.0, "1.1", 1),
        ("b", "e", 3_250_000.0, "1.1", 1),
    ]
