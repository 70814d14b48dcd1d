"""The gate of a generation actor around an update, with a fake vLLM: versions, waiting, canary."""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import AsyncIterator, Awaitable, Coroutine
from types import ModuleType, SimpleNamespace
from typing import Any, TypeVar

import numpy as np
import pytest
from tasks import settle

from actors.generation import GenerationActor
from actors.vllm_settings import EngineSpec
from rlsys.errors import EngineDied, SyncError
from rlsys.types import Completion, GenerationRequest

T = TypeVar("T")
PROMPT = np.array([4, 5, 6], np.int32)
OURS = -0.5
"""The engine's log-prob of every token."""


class FakeEngine:
    """Writes one token per request, once `gate` is open; gives every token the log-prob OURS."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.salts: list[str] = []
        self.calls: list[str] = []
        self.errored = False
        self.hangs = False
        self.engine_core = SimpleNamespace(pause_scheduler_async=self._pause)

    async def generate(
        self, prompt: dict[str, Any], params: SimpleNamespace, request_id: str
    ) -> AsyncIterator[SimpleNamespace]:
        self.salts.append(prompt["cache_salt"])
        await self.gate.wait()
        ids = prompt["prompt_token_ids"]
        sample = SimpleNamespace(
            token_ids=[7],
            logprobs=SimpleNamespace(logprobs=[OURS], token_ids=[7]),
            finish_reason="length",
        )
        yield SimpleNamespace(
            finished=True,
            outputs=[sample],
            num_cached_tokens=0,
            prompt_logprobs=[None, *({i: SimpleNamespace(logprob=OURS)} for i in ids[1:])],
        )

    async def _pause(self, *, mode: str, clear_cache: bool) -> None:
        await self._call(f"pause {mode} {clear_cache}")

    async def resume_generation(self) -> None:
        await self._call("resume")

    async def collective_rpc(self, method: str, **_: object) -> list[None]:
        await self._call(method)
        return [None]

    async def _call(self, name: str) -> None:
        self.calls.append(name)
        if self.hangs:
            await asyncio.Event().wait()


@pytest.fixture
def actor(monkeypatch: pytest.MonkeyPatch) -> GenerationActor:
    """An actor that serves version 0; vLLM itself is not imported."""
    modules: dict[str, dict[str, object]] = {
        "vllm": {"SamplingParams": SimpleNamespace},
        "vllm.sampling_params": {"RequestOutputKind": SimpleNamespace(FINAL_ONLY=0)},
        "vllm.v1.engine.exceptions": {"EngineDeadError": type("EngineDeadError", (Exception,), {})},
    }
    for name, contents in modules.items():
        module = ModuleType(name)
        module.__dict__.update(contents)
        monkeypatch.setitem(sys.modules, name, module)
    made = GenerationActor(
        EngineSpec(
            index=3,
            model="fake",
            dtype="float32",
            max_length=64,
            max_sequences=4,
            tensor_parallel=1,
            on_gpu=False,
            gpu_memory_utilization=0.4,
            kv_cache_bytes=None,
            enforce_eager=True,
            seed=0,
        )
    )
    made._engine = FakeEngine()
    made._serve()
    return made


def run(main: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(main, 20))


def engine_of(actor: GenerationActor) -> FakeEngine:
    engine = actor._engine
    assert isinstance(engine, FakeEngine)
    return engine


async def one(actor: GenerationActor) -> Completion:
    request = GenerationRequest(
        token_ids=PROMPT, n=1, max_tokens=1, stop_token_ids=(), temperature=1.0, seed=1
    )
    ((completion,),) = await actor.generate([request])
    return completion


async def verify(actor: GenerationActor, theirs: float) -> float:
    return await actor.verify([PROMPT], [np.full(2, theirs, np.float32)], 0.1)


def test_a_request_in_flight_carries_both_versions_and_waits_for_the_canary(
    actor: GenerationActor,
) -> None:
    async def scenario() -> tuple[Completion, Completion]:
        engine = engine_of(actor)
        engine.gate.clear()
        flight = asyncio.ensure_future(one(actor))
        await settle()
        await actor.begin_update()
        late = asyncio.ensure_future(one(actor))
        await actor.finish_update(1)
        engine.gate.set()
        await settle()
        assert not flight.done() and not late.done()
        assert await verify(actor, OURS + 0.05) == pytest.approx(0.05)
        return await flight, await late

    flight, late = run(scenario())
    assert (flight.versions, late.versions) == ((0, 1), (1, 1))
    # The canary and the late request do not find the prefixes of older weights.
    assert engine_of(actor).salts == ["version-0", "version-1", "version-1"]
    assert engine_of(actor).calls == [
        "pause keep False",
        "rlsys_begin",
        "rlsys_finish",
        "resume",
    ]


@pytest.mark.parametrize("theirs", [OURS + 0.2, OURS - 0.2, math.nan])
def test_an_engine_that_fails_the_canary_serves_nobody(
    actor: GenerationActor, theirs: float
) -> None:
    async def scenario() -> None:
        await actor.begin_update()
        await actor.finish_update(1)
        with pytest.raises(SyncError, match=r"engine 3 .* version 1"):
            await verify(actor, theirs)
        waiting = asyncio.ensure_future(one(actor))
        await settle()
        assert not waiting.done()
        waiting.cancel()

    run(scenario())


def test_an_actor_that_was_started_again_refuses_requests_until_its_weights_are_checked(
    actor: GenerationActor,
) -> None:
    async def scenario() -> Completion:
        again = GenerationActor(actor._spec)
        again._engine = actor._engine  # what start(serve=False) does
        with pytest.raises(EngineDied, match="no weights yet"):
            await one(again)
        assert not (await again.heartbeat()).serving
        await again.begin_update()
        await again.finish_update(5)
        with pytest.raises(EngineDied, match="no weights yet"):
            await one(again)
        await verify(again, OURS)
        first, second = await actor.heartbeat(), await again.heartbeat()
        assert second.serving
        assert first.life != second.life
        return await one(again)

    assert run(scenario()).versions == (5, 5)


def test_an_update_inside_an_update_needs_a_new_engine(actor: GenerationActor) -> None:
    async def scenario() -> None:
        await actor.begin_update()
        with pytest.raises(EngineDied, match="in the middle of another update"):
            await actor.begin_update()

    run(scenario())


def test_no_call_of_an_update_waits_for_an_engine_that_died(actor: GenerationActor) -> None:
    async def dies_in(call: Awaitable[None]) -> None:
        engine = engine_of(actor)
        engine.hangs = True
        waiting = asyncio.ensure_future(call)
        await asyncio.sleep(0.01)
        engine.errored = True
        with pytest.raises(EngineDied, match="engine 3 died"):
            await asyncio.wait_for(waiting, 10)
        engine.hangs = engine.errored = False

    async def scenario() -> None:
        await dies_in(actor.begin_update())
        assert engine_of(actor).calls[-1] == "pause keep False"
        # vLLM answers the first call of the end, and dies in the second one.
        actor._call_workers = nothing  # type: ignore[method-assign]
        await dies_in(actor.finish_update(1))
        assert engine_of(actor).calls[-1] == "resume"

    async def nothing(*_: object, **__: object) -> None: ...

    run(scenario())


def test_a_heartbeat_shows_engines_that_hang_or_are_lost(actor: GenerationActor) -> None:
    async def scenario() -> None:
        engine = engine_of(actor)
        await one(actor)
        beat = await actor.heartbeat()
        assert (beat.serving, beat.finished_tokens) == (True, 1)
        await settle()
        assert (await actor.heartbeat()).silent_s < 0.01
        await settle()
        engine.hangs = True
        await actor.heartbeat()  # asks vLLM's processes, which do not answer
        await asyncio.sleep(0.05)
        assert (await actor.heartbeat()).silent_s >= 0.05
        engine.errored = True
        with pytest.raises(EngineDied, match="engine 3 died"):
            await actor.heartbeat()

    run(scenario())
