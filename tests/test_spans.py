"""Spans of a process, and how they become a trace."""

from __future__ import annotations

import pytest

from rlsys import spans
from rlsys.launch.trace import trace_events
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
