"""A sample that goes on between two parts: waiting for tokens, what breaks it, who is forgotten."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from actors.running_samples import RunningSample, RunningSamples
from rlsys.errors import EngineDied


def output(token_ids: list[int], finish_reason: str | None = None) -> Any:
    """What vLLM sends: new tokens, whose log-probs are the negative ids."""
    logprobs = SimpleNamespace(logprobs=[-float(t) for t in token_ids])
    new = SimpleNamespace(token_ids=token_ids, logprobs=logprobs, finish_reason=finish_reason)
    return SimpleNamespace(
        request_id="7", num_cached_tokens=3, outputs=[new], finished=finish_reason is not None
    )


class Engine:
    """Sends what it is told to send."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[Any] = asyncio.Queue()

    async def sampling(self, sample: RunningSample) -> None:
        while sample.finish_reason is None:
            sent = await self.queue.get()
            if isinstance(sent, Exception):
                raise sent
            sample.take(sent)


def test_a_part_waits_for_its_last_token_or_for_the_end() -> None:
    async def scenario() -> None:
        engine, sample = Engine(), RunningSample(10)
        sample.run(engine.sampling)
        first = asyncio.ensure_future(sample.reach(3))
        engine.queue.put_nowait(output([1, 2]))
        await asyncio.sleep(0.01)
        assert not first.done()
        engine.queue.put_nowait(output([3, 4]))
        await asyncio.wait_for(first, 5)
        assert sample.logprobs(1, 3).tolist() == [-2.0, -3.0]
        assert (sample.request_id, sample.cached_tokens) == ("7", 3)
        await asyncio.wait_for(sample.reach(4), 5)  # they are there already
        second = asyncio.ensure_future(sample.reach(100))
        engine.queue.put_nowait(output([5], "stop"))
        await asyncio.wait_for(second, 5)
        assert sample.token_ids == [1, 2, 3, 4, 5]
        assert sample.finish_reason == "stop"

    asyncio.run(scenario())


@pytest.mark.parametrize("waits", [True, False])
def test_what_breaks_a_sample_is_raised_to_its_next_part(waits: bool) -> None:
    async def scenario() -> None:
        engine, sample = Engine(), RunningSample(10)
        sample.run(engine.sampling)
        engine.queue.put_nowait(output([1, 2]))
        await asyncio.wait_for(sample.reach(2), 5)
        part = asyncio.ensure_future(sample.reach(9)) if waits else None
        engine.queue.put_nowait(EngineDied("engine 3 died"))
        await asyncio.sleep(0.01)
        with pytest.raises(EngineDied, match="engine 3 died"):
            await asyncio.wait_for(part or sample.reach(9), 5)

    asyncio.run(scenario())


def test_samples_that_nobody_continues_are_forgotten_once_they_have_ended() -> None:
    samples = RunningSamples(2)
    running = RunningSample(10)
    samples.add("running", running)
    for number in range(5):
        ended = RunningSample(10)
        ended.take(output([1], "length"))
        samples.add(f"ended {number}", ended)
    assert samples.get("running") is running
    assert [samples.get(f"ended {n}") is None for n in range(5)] == [True] * 2 + [False] * 3
    samples.remove("running")
    assert samples.get("running") is None
    assert samples.get(None) is None
