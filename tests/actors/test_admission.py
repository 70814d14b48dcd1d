"""The order in which requests of an engine run."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from tasks import settle

from actors.admission import Admission

NEW, BEGUN = False, True


class Running:
    """Requests that run until they are told to end, in the order of their start."""

    def __init__(self, places: int) -> None:
        self.admission = Admission(places)
        self.started: list[str] = []
        self.ends: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def ask(self, name: str, samples: int = 1, begun: bool = NEW) -> None:
        self.ends[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(self._run(name, samples, begun))
        await settle()

    async def end(self, *names: str) -> None:
        for name in names:
            self.ends[name].set()
        await settle()

    async def cancel(self, name: str) -> None:
        self.tasks[name].cancel()
        await settle()

    async def _run(self, name: str, samples: int, begun: bool) -> None:
        async with self.admission.admitted(samples, begun=begun):
            self.started.append(name)
            await self.ends[name].wait()


def test_answers_run_before_thoughts_that_arrived_earlier() -> None:
    async def scenario() -> Sequence[str]:
        running = Running(places=2)
        for thought in ("first", "second", "third", "fourth"):
            await running.ask(thought)
        await running.ask("answers", samples=2, begun=BEGUN)
        assert running.started == ["first", "second"]
        await running.end("first")
        assert running.started == ["first", "second"]  # the third does not overtake the answers
        await running.end("second")
        assert running.started == ["first", "second", "answers"]
        await running.end("answers")
        return running.started

    assert asyncio.run(scenario()) == ["first", "second", "answers", "third", "fourth"]


def test_a_request_for_more_than_there_is_runs_alone() -> None:
    async def scenario() -> Sequence[str]:
        running = Running(places=4)
        await running.ask("small")
        await running.ask("large", samples=8)
        await running.ask("next")
        assert running.started == ["small"]
        await running.end("small")
        assert running.started == ["small", "large"]
        await running.end("large")
        return running.started

    assert asyncio.run(scenario()) == ["small", "large", "next"]


@pytest.mark.parametrize("cancelled", ["runs", "waits"])
def test_a_cancelled_request_frees_what_it_had(cancelled: str) -> None:
    async def scenario() -> Sequence[str]:
        running = Running(places=2)
        await running.ask("runs", samples=2)
        await running.ask("waits", samples=2)
        await running.ask("next", samples=2)
        await running.cancel(cancelled)
        await running.end(*{"runs", "waits"} - {cancelled})
        assert running.admission._free == 0
        await running.end("next")
        assert running.admission._free == 2
        return running.started

    other = {"runs": "waits", "waits": "runs"}[cancelled]
    expected = [*(["runs"] if cancelled == "runs" else []), other, "next"]
    assert asyncio.run(scenario()) == expected


def test_a_request_that_is_cancelled_while_it_is_admitted_frees_its_places() -> None:
    async def scenario() -> None:
        running = Running(places=1)
        await running.ask("runs")
        await running.ask("waits")
        running.ends["runs"].set()
        await asyncio.sleep(0)  # `runs` gives its place to `waits`, whose task has not gone on yet
        running.tasks["waits"].cancel()
        await settle()
        assert running.started == ["runs"]
        assert running.admission._free == 1

    asyncio.run(scenario())
