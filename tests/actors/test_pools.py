"""Routing over engines with hand-written handles; grading over real actors in a real Ray."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from actors.engine_state import EngineCounts
from actors.pools import GenerationPool, GradingPool
from rlsys.types import Completion, GenerationRequest, GradingRequest, Verdict
from rlsys.weights import Bucket, BucketFile, CardBuffer, SentPart

AnyCoroutine = Coroutine[Any, Any, Any]


class Method:
    """What Ray puts in a method's place: `.remote(...)` returns something to await."""

    def __init__(self, function: Callable[..., AnyCoroutine]) -> None:
        self.remote = function


class Engine:
    """Handle of an engine that answers once `gate` is set and notes what it was asked."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.calls: list[list[int]] = []
        self.gate = asyncio.Event()
        self.generate = Method(self._generate)
        self.counts = Method(self._counts)
        self.verify = Method(self._verify)
        self.updates: list[tuple[Any, ...]] = []
        for name in ("join_nccl", "receive_files", "receive_ipc", "receive_nccl"):
            setattr(self, name, Method(partial(self._update, name)))

    async def _generate(self, batch: Sequence[GenerationRequest]) -> list[list[Completion]]:
        self.calls.append([int(r.token_ids[0]) for r in batch])
        await self.gate.wait()
        return [[self._completion(r)] * r.n for r in batch]

    def _completion(self, request: GenerationRequest) -> Completion:
        return Completion(
            token_ids=request.token_ids,
            logprobs=np.zeros(1, np.float32),
            stopped=True,
            versions=(0, 0),
            engine=self.index,
        )

    async def _counts(self) -> EngineCounts:
        return EngineCounts(prompt_tokens=10, cached_tokens=self.index)

    async def _verify(self, sequences: Any, logprobs: Any, tolerance: float) -> float:
        return tolerance * self.index

    async def _update(self, *call: Any) -> None:
        self.updates.append(call)


def request(
    name: int, *, engine: int | None = None, n: int = 1, tokens: int = 10
) -> GenerationRequest:
    return GenerationRequest(
        token_ids=np.array([name], np.int32),
        n=n,
        max_tokens=tokens,
        stop_token_ids=(),
        temperature=1.0,
        seed=0,
        engine=engine,
    )


def test_a_request_goes_to_the_engine_with_the_least_work() -> None:
    async def scenario() -> list[list[list[int]]]:
        engines = [Engine(0), Engine(1)]
        pool = GenerationPool(engines)
        waiting = [asyncio.ensure_future(pool.generate([request(1, n=2, tokens=20)]))]
        for name in (2, 3, 4):  # 10 tokens each: all of them weigh less than the first
            await asyncio.sleep(0)
            waiting.append(asyncio.ensure_future(pool.generate([request(name)])))
        await asyncio.sleep(0)
        for engine in engines:
            engine.gate.set()
        await asyncio.gather(*waiting)
        await pool.generate([request(5)])  # nothing is in hand any more, so the first one again
        return [engine.calls for engine in engines]

    assert asyncio.run(scenario()) == [[[1], [5]], [[2], [3], [4]]]


def test_senders_begin_at_different_engines() -> None:
    """Each of three senders has one request for each third of six engines; none gets two."""

    async def scenario() -> list[list[list[int]]]:
        engines = [Engine(index) for index in range(6)]
        pool = GenerationPool(engines)
        senders = [pool.part(part, 3) for part in range(3)]
        senders[2]._down[5] = asyncio.ensure_future(asyncio.sleep(0))  # goes on at engine 0
        waiting = [
            asyncio.ensure_future(sender.generate([request(10 * i), request(10 * i + 1)]))
            for i, sender in enumerate(senders)
        ]
        await asyncio.sleep(0)
        for engine in engines:
            engine.gate.set()
        await asyncio.gather(*waiting)
        return [engine.calls for engine in engines]

    assert asyncio.run(scenario()) == [[[0], [21]], [[1]], [[10]], [[11]], [[20]], []]


def test_requests_of_one_affinity_share_an_engine_while_one_of_them_runs() -> None:
    async def scenario() -> list[list[list[int]]]:
        engines = [Engine(0), Engine(1)]
        pool = GenerationPool(engines)

        def send(name: int, affinity: int | None) -> asyncio.Future[list[list[Completion]]]:
            asked = replace(request(name), affinity=affinity)
            return asyncio.ensure_future(pool.generate([asked]))

        waiting = [send(1, 77), send(2, 77), send(3, None), send(4, 77), send(5, 99)]
        await asyncio.sleep(0)
        for engine in engines:
            engine.gate.set()
        await asyncio.gather(*waiting)
        assert (pool._affinities, pool._load) == ({}, [0, 0])
        await send(6, 77)
        return [engine.calls for engine in engines]

    assert asyncio.run(scenario()) == [[[1], [2], [4], [6]], [[3], [5]]]


def test_a_named_engine_is_used_whatever_its_load_and_order_is_kept() -> None:
    async def scenario() -> tuple[list[list[list[int]]], list[tuple[int, int]]]:
        engines = [Engine(0), Engine(1)]
        for engine in engines:
            engine.gate.set()
        requests = [request(7, engine=1), request(8, engine=0), request(9, engine=1, tokens=900)]
        results = await GenerationPool(engines).generate(requests)
        return [e.calls for e in engines], [(int(r[0].token_ids[0]), r[0].engine) for r in results]

    calls, results = asyncio.run(scenario())
    assert calls == [[[8]], [[7, 9]]]  # one call an engine
    assert results == [(7, 1), (8, 0), (9, 1)]


def test_a_failed_call_leaves_no_load_behind() -> None:
    class Refuses(Engine):
        async def _generate(self, batch: Sequence[GenerationRequest]) -> list[list[Completion]]:
            raise ValueError("a request that no engine takes")

    async def scenario() -> None:
        refusing, alive = Refuses(0), Engine(1)
        alive.gate.set()
        pool = GenerationPool([refusing, alive])
        for _ in range(2):  # the first one again: it has no more work than the other
            with pytest.raises(ValueError, match="no engine takes"):
                await pool.generate([request(1, tokens=1000)])
        assert alive.calls == []

    asyncio.run(scenario())


def test_numbers_of_all_engines_are_joined() -> None:
    async def scenario() -> tuple[EngineCounts, float]:
        pool = GenerationPool([Engine(1), Engine(3), Engine(2)])
        return await pool.counts(), await pool.sink.verify([], [], 0.1)

    counts, gap = asyncio.run(scenario())
    assert counts == EngineCounts(prompt_tokens=30, cached_tokens=6)
    assert gap == pytest.approx(0.3)


def test_an_engine_that_left_is_not_asked_for_its_numbers() -> None:
    """It may wait for a node, for as long as none has room."""

    async def never() -> EngineCounts:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    async def scenario() -> EngineCounts:
        engines = [Engine(1), Engine(3)]
        engines[0].counts = Method(never)
        pool = GenerationPool(engines)
        pool.sink.leave(0)
        async with asyncio.timeout(5):
            return await pool.counts()

    assert asyncio.run(scenario()) == EngineCounts(prompt_tokens=10, cached_tokens=3)


def test_workers_follow_the_learner_in_the_nccl_group() -> None:
    """Rank 0 is the learner's: two engines of two workers begin at ranks 1 and 3 of five."""
    engines = [Engine(0), Engine(1)]
    asyncio.run(GenerationPool(engines).sink.join_nccl("host", 7, workers_per_engine=2))
    assert [engine.updates for engine in engines] == [
        [("join_nccl", "host", 7, 1, 5)],
        [("join_nccl", "host", 7, 3, 5)],
    ]


BUCKET: Bucket = [("norm.weight", "float32", (4,))]
FILE, BUFFERS = BucketFile(path="a file"), [CardBuffer(handle=b"0"), CardBuffer(handle=b"1")]


@pytest.mark.parametrize(
    ("sent", "calls"),
    [
        # Ranks that send nothing follow rank 0, which wrote the file.
        ([[FILE, None]], [("receive_files", ["a file"]), ("receive_files", ["a file"])]),
        (
            [BUFFERS, BUFFERS],
            [("receive_ipc", [b"0", b"0"], [BUCKET]), ("receive_ipc", [b"1", b"1"], [BUCKET])],
        ),
        ([], [("receive_nccl", [BUCKET]), ("receive_nccl", [BUCKET])]),
    ],
)
def test_every_engine_fetches_buckets_from_its_place(
    sent: list[list[SentPart]], calls: list[tuple[Any, ...]]
) -> None:
    engines = [Engine(0), Engine(1)]
    asyncio.run(GenerationPool(engines).sink.receive([BUCKET], sent))
    assert [engine.updates for engine in engines] == [[call] for call in calls]


HANG = r"\boxed{\sum_{k=1}^{10^9} k^k}"


@pytest.mark.slow
def test_grading_in_a_real_ray() -> None:
    import ray

    from actors.grading import GradingActor
    from rlsys.config import GradingConfig

    class Counting(GradingActor):
        graded = 0

        def grade(self, requests: list[GradingRequest]) -> list[Verdict]:
            self.graded += len(requests)
            return super().grade(requests)

        def count(self) -> int:
            return self.graded

    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        config = GradingConfig(timeout_s=2.0)
        graders = [ray.remote(Counting).remote(config) for _ in range(2)]
        pool = GradingPool(graders, max_characters=config.max_characters)
        pool = pickle.loads(ray.cloudpickle.dumps(pool))  # as it travels to an actor
        requests = [
            GradingRequest(r"\boxed{x+1}", "1+x"),
            GradingRequest(HANG, "5"),
            GradingRequest(r"\boxed{x+2}", "1+x"),
            GradingRequest("no box", "5"),
        ]
        right, wrong, invalid = Verdict.RIGHT, Verdict.WRONG, Verdict.INVALID
        assert asyncio.run(pool.grade(requests)) == [right, invalid, wrong, wrong]
        assert asyncio.run(pool.grade(requests[:1] * 5)) == [right] * 5
        counts = ray.get([grader.count.remote() for grader in graders])
    finally:
        ray.shutdown()
    assert sorted(counts) == [1, 2]  # neither the easy one nor repeats travelled
