"""Readers that die, hang or come back, with hand-written handles in place of Ray's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from ray.exceptions import ActorDiedError, NodeDiedError, RayTaskError, WorkerCrashedError

from actors.reflection import ReflectionActor, ReflectionPool
from rlsys.errors import EngineError
from rlsys.types import Completion, GenerationRequest


class Method:
    """What Ray puts in a method's place: `.remote(...)` returns something to await."""

    def __init__(self, function: Callable[..., Coroutine[Any, Any, Any]]) -> None:
        self.remote = function


class Handle:
    """A reader that fails as often as told, then answers."""

    def __init__(self, index: int, *failures: Exception, hangs: bool = False) -> None:
        self.index = index
        self.calls = 0
        self._failures = list(failures)
        self._hangs = hangs
        self.generate = Method(self._generate)

    async def _generate(self, batch: Sequence[GenerationRequest]) -> list[list[Completion]]:
        self.calls += 1
        if self._hangs:
            await asyncio.Event().wait()
        if self._failures:
            raise self._failures.pop(0)
        return [[completion(self.index)] for _ in batch]


def completion(engine: int) -> Completion:
    return Completion(
        token_ids=np.zeros(1, np.int32),
        logprobs=np.zeros(1, np.float32),
        stopped=True,
        versions=(0, 0),
        engine=engine,
    )


REQUEST = GenerationRequest(
    token_ids=np.zeros(3, np.int32),
    n=1,
    max_tokens=4,
    stop_token_ids=(),
    temperature=0.0,
    seed=None,
)


def ask(pool: ReflectionPool) -> int:
    """Which reader answered."""
    ((answer,),) = asyncio.run(pool.generate([REQUEST]))
    return answer.engine


def test_a_dead_reader_is_passed_over_and_asked_again_when_it_is_back() -> None:
    first, second = Handle(0, ActorDiedError(), EngineError("engine 0 died")), Handle(1)
    pool = ReflectionPool([first, second], timeout_s=5)
    assert [ask(pool) for _ in range(3)] == [1, 1, 0]
    assert (first.calls, second.calls) == (3, 2)


def test_without_a_living_reader_who_asks_is_told_at_once() -> None:
    pool = ReflectionPool([Handle(i, *[ActorDiedError()] * 2) for i in range(2)], timeout_s=5)
    for _ in range(2):
        with pytest.raises(EngineError, match="no reflection engine is alive"):
            ask(pool)
    assert ask(pool) == 0


@pytest.mark.parametrize("death", [WorkerCrashedError(), NodeDiedError("gone")])
def test_however_a_reader_dies_the_next_is_asked(death: Exception) -> None:
    assert ask(ReflectionPool([Handle(0, death), Handle(1)], timeout_s=5)) == 1


def test_a_mistake_is_not_taken_for_a_death() -> None:
    mistake = RayTaskError("generate", "", TypeError("a mistake"))
    with pytest.raises(TypeError):
        ask(ReflectionPool([Handle(0, mistake.as_instanceof_cause()), Handle(1)], timeout_s=5))


def test_a_slow_reader_is_not_waited_for() -> None:
    with pytest.raises(EngineError, match=r"no reflection engine answered within 0\.05 s"):
        ask(ReflectionPool([Handle(0, hangs=True)], timeout_s=0.05))


def test_requests_go_to_the_reader_with_the_least_work() -> None:
    async def main() -> list[int]:
        pool = ReflectionPool([Handle(0, hangs=True), Handle(1)], timeout_s=0.1)
        waiting = asyncio.create_task(pool.generate([REQUEST]))
        await asyncio.sleep(0)
        answers = [await pool.generate([REQUEST]) for _ in range(2)]
        with pytest.raises(EngineError):
            await waiting
        return [answer.engine for ((answer,),) in answers]

    assert asyncio.run(main()) == [1, 1]


class LoadsOften(ReflectionActor):
    """A reader whose engine is a word; asked for two requests, it dies."""

    def __init__(self) -> None:
        self._loading = asyncio.Lock()
        self._reload_after = 0.0
        self._engine = None
        self.loaded = 0
        self.full = False

    async def _generate_one(self, request: GenerationRequest) -> list[Completion]:
        await asyncio.sleep(0)
        if request.n == 2:
            raise EngineError("engine 0 died")
        return [completion(0)]


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> LoadsOften:
    async def load(actor: LoadsOften, serve: bool) -> str:
        await asyncio.sleep(0)
        actor.loaded += 1
        if actor.full:
            raise RuntimeError("no memory left on the card")
        actor._engine = Engine()
        return "0"

    monkeypatch.setattr("actors.generation.GenerationActor.start", load)
    return LoadsOften()


class Engine:
    def shutdown(self) -> None:
        """Nothing runs."""


def test_a_reader_loads_its_engine_once_and_again_after_it_died(reader: LoadsOften) -> None:
    async def main() -> None:
        await asyncio.gather(*(reader.generate([REQUEST]) for _ in range(3)))
        assert reader.loaded == 1
        deaths = (reader.generate([replace(REQUEST, n=2)]) for _ in range(2))
        assert [type(e) for e in await asyncio.gather(*deaths, return_exceptions=True)] == [
            EngineError
        ] * 2
        await reader.generate([REQUEST])
        assert reader.loaded == 2

    asyncio.run(main())


def test_a_reader_that_cannot_be_loaded_again_costs_what_is_asked(
    reader: LoadsOften, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        reader.full = True
        with pytest.raises(EngineError, match=r"could not be loaded again \(no memory left"):
            await reader.generate([REQUEST])
        with pytest.raises(EngineError, match="the last attempt"):
            await reader.generate([REQUEST])
        assert reader.loaded == 1  # not again at once
        reader.full = False
        monkeypatch.setattr("actors.reflection.time.monotonic", lambda: reader._reload_after)
        await reader.generate([REQUEST])
        assert reader.loaded == 2

    asyncio.run(main())


def test_a_reader_that_cannot_be_loaded_at_all_ends_the_run(reader: LoadsOften) -> None:
    reader.full = True
    with pytest.raises(RuntimeError, match="no memory left"):
        asyncio.run(reader.start())
