"""Engines that die, hang or come back, at every point of a run, with hand-written processes."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import numpy as np
import pytest
from engine_processes import EngineProcess

from actors.pools import GenerationPool
from rlsys.config import GenerationConfig
from rlsys.errors import EngineError, LearnerDied, SyncError
from rlsys.launch.supervision import EngineSupervisor
from rlsys.training.weight_sync import WeightSync
from rlsys.types import Floats, GenerationRequest, Tokens
from rlsys.weights import BucketFile, SentPart


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses of milliseconds, and Ray's kill for the hand-written processes."""
    for name in ("BEAT_PAUSE_S", "LIFE_PAUSE_S"):
        monkeypatch.setattr(f"rlsys.launch.supervision.{name}", 0.002)
    monkeypatch.setattr("rlsys.launch.supervision.LIFE_LIMIT_S", 0.05)
    monkeypatch.setattr("actors.pools.PROBE_PAUSE_S", 0.002)
    monkeypatch.setattr("actors.pools.PROBE_LIMIT_S", 0.05)
    monkeypatch.setattr("actors.handles.ray.kill", lambda actor, no_restart: actor.killed())


class Source:
    """The learner's end; `collective` sends nothing to fetch."""

    def __init__(self, *, collective: bool = False) -> None:
        self.collective = collective
        self.stuck = False

    async def send(self) -> Sequence[Sequence[SentPart]]:
        if self.stuck:
            await asyncio.Event().wait()
        await asyncio.sleep(0.001)
        return () if self.collective else [[BucketFile(path="bucket 0")]]

    async def sequence_logprobs(self, sequences: Sequence[Tokens]) -> list[Floats]:
        return [np.zeros(len(s) - 1, np.float32) for s in sequences]

    async def answers(self) -> bool:
        return not self.stuck


class Homes:
    """Nodes by name: engine i stands on node i at first, and `spare` nodes have room for one."""

    movable = True

    def __init__(self, engines: list[EngineProcess]) -> None:
        self.engines = engines
        self.stands = [str(i) for i in range(len(engines))]
        self.drained: set[str] = set()
        self.spare: list[str] = []
        self.moves = 0

    def node(self, engine: int) -> str:
        return self.stands[engine]

    def leaving(self, engine: int) -> bool:
        return self.stands[engine] in self.drained

    def has_place(self, engine: int) -> bool:
        if not self.stands[engine] and self.spare:
            self.stands[engine] = self.spare.pop()
            self.engines[engine].waiting = False
        return bool(self.stands[engine])

    def has_room(self, engine: int) -> bool:
        return bool(self.spare)

    async def move(self, engine: int, old: Any) -> None:
        self.moves += 1
        self.lose(engine)

    def lose(self, engine: int) -> None:
        """End the engine with its node; the next process answers once there is a node for it."""
        self.stands[engine] = ""
        self.engines[engine].die()
        self.engines[engine].waiting = True


class World:
    """A pool of engines under supervision, and the driver's end of weight syncs."""

    def __init__(
        self, engines: int = 2, *, collective: bool = False, copies: int = 1, **limits: Any
    ) -> None:
        self.engines = [EngineProcess(index) for index in range(engines)]
        self.limits = GenerationConfig.model_validate(
            {"engines": engines, "heartbeat_s": 0.1, "restart_s": 2.0, **limits}
        )
        # Every environment actor has a copy of its own; the first one is the driver's.
        self.pools = [
            GenerationPool(self.engines, min_engines=self.limits.min_engines, patience_s=1.0)
            for _ in range(copies)
        ]
        self.source = Source(collective=collective)
        self.groups: list[list[tuple[int, int]]] = []
        self.sync = WeightSync(
            source=self.source,
            sink=self.pools[0].sink,
            buckets=[[("a", "float32", (2,))], [("b", "float32", (2,))]],
            collective=collective,
            deadline_s=2.0,
            canary=(np.array([1, 2], np.int32),),
            tolerance=0.1,
            regroup=self.regroup if collective else None,
        )
        self.told: list[str] = []
        self.homes = Homes(self.engines)
        self.supervisor = EngineSupervisor(
            self.pools[0], self.limits, homes=self.homes, tell=self.told.append
        )

    async def regroup(self, _: frozenset[int]) -> None:
        await self.pools[0].sink.join_nccl("host", 7, workers_per_engine=1)
        members = sorted(self.pools[0].sink.members)
        self.groups.append([self.engines[e].place for e in members])

    async def publish(self, version: int) -> float:
        async with self.sync.learner_busy():
            return await self.sync.publish(version)

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not holds():
                await asyncio.sleep(0.002)

    async def all_serve(self, version: int) -> None:
        await self.until(
            lambda: all(e.serving.is_set() and e.version == version for e in self.engines)
        )


def play(world: Callable[[], World], scenario: Callable[[World], Awaitable[None]]) -> World:
    """Run the scenario under supervision."""

    async def main() -> World:
        place = world()
        watching = asyncio.create_task(place.supervisor.watch(place.sync))
        playing = asyncio.ensure_future(scenario(place))
        try:
            await asyncio.wait([watching, playing], return_when=asyncio.FIRST_COMPLETED)
            await (watching if watching.done() else playing)
        finally:
            watching.cancel()
            playing.cancel()
            await asyncio.gather(watching, playing, return_exceptions=True)
        return place

    return asyncio.run(main())


def request(name: int, engine: int | None = None) -> GenerationRequest:
    return GenerationRequest(
        token_ids=np.array([name], np.int32),
        n=1,
        max_tokens=10,
        stop_token_ids=(),
        temperature=1.0,
        seed=100 + name,
        engine=engine,
    )


async def sampled(world: World, count: int, copy: int = 0, engine: int | None = None) -> list[int]:
    """Sample `count` requests at once; check results and seeds; return the engines' indices."""
    requests = [request(i, engine) for i in range(count)]
    results = await world.pools[copy].generate(requests)
    for i, (completion,) in enumerate(results):
        assert completion.token_ids.tolist() == [i, 100 + i]
    return [completion.engine for (completion,) in results]


@pytest.mark.parametrize("call", ["generate", "heartbeat"])
@pytest.mark.parametrize("engines", [1, 2])
def test_a_death_costs_no_request(call: str, engines: int) -> None:
    async def scenario(world: World) -> None:
        await world.publish(3)
        world.engines[0].dies_at = [call]
        await sampled(world, 8)
        await world.until(lambda: world.supervisor.restarts == 1)
        await world.all_serve(3)
        assert await sampled(world, 4, engine=0) == [0] * 4 or engines == 2
        await world.until(lambda: world.supervisor.alive == engines)

    world = play(lambda: World(engines), scenario)
    assert world.told == [
        "engine 0 died; it is started again (restarts left: 2), and its requests are sampled again "
        "with the same seeds",
        "engine 0 serves again with the weights of version 3",
    ]


def test_requests_that_name_a_dead_engine_go_elsewhere_until_it_is_back() -> None:
    async def scenario(world: World) -> None:
        await world.publish(1)
        world.engines[0].dies_at = ["generate"]
        assert set(await sampled(world, 3, engine=0)) == {1}
        assert world.pools[0].rerouted == 3
        await world.all_serve(1)
        await asyncio.sleep(0.05)
        assert set(await sampled(world, 3, engine=0)) == {0}

    play(World, scenario)


def test_every_copy_of_the_pool_finds_out_by_itself() -> None:
    async def scenario(world: World) -> None:
        await world.publish(1)
        world.engines[0].die()
        used = await asyncio.gather(*(sampled(world, 4, copy) for copy in range(3)))
        assert {engine for engines in used for engine in engines} <= {0, 1}
        await world.all_serve(1)
        await asyncio.sleep(0.05)
        for copy in range(3):
            assert set(await sampled(world, 4, copy)) == {0, 1}

    play(lambda: World(copies=3), scenario)


@pytest.mark.parametrize("where", ["heartbeat", "generate"])
def test_an_engine_that_hangs_is_ended(where: str) -> None:
    async def scenario(world: World) -> None:
        await world.publish(1)
        world.engines[0].hangs_at = where
        await sampled(world, 6)
        await world.until(lambda: world.supervisor.restarts == 1)
        await world.all_serve(1)

    world = play(World, scenario)
    assert world.engines[0].kills >= 1
    assert "engine 0 did not answer for generation.heartbeat_s 0.1 s; it is" in world.told[0]


def test_processes_of_vllm_that_hang_or_die_are_ended_with_their_actor() -> None:
    async def scenario(world: World) -> None:
        await world.publish(1)
        world.engines[0].silent_s = 0.2
        await world.until(lambda: world.engines[0].kills == 1)
        await world.all_serve(1)
        await world.until(lambda: world.supervisor.alive == 2)
        world.engines[1].lost = True
        await sampled(world, 6)
        await world.until(lambda: world.engines[1].kills == 1)
        await world.all_serve(1)

    world = play(World, scenario)
    assert "(vLLM hangs); it is started again" in world.told[0]
    assert "engine 1 lost the processes of vLLM; it is started again" in world.told[2]


@pytest.mark.parametrize("engines", [1, 2])
@pytest.mark.parametrize("call", ["begin_update", "receive_files", "finish_update", "verify"])
@pytest.mark.parametrize("fault", ["dies", "hangs"])
def test_a_sync_goes_on_without_an_engine_that_is_lost(call: str, engines: int, fault: str) -> None:
    async def scenario(world: World) -> None:
        await world.publish(1)
        if fault == "dies":
            world.engines[0].dies_at = [call]
        else:
            world.engines[0].hangs_at = call
        gap = await world.publish(2)
        assert gap == 0.02 if engines == 2 else math.isnan(gap)
        await sampled(world, 6)
        await world.all_serve(2)
        await world.until(lambda: world.supervisor.alive == engines)
        assert await world.publish(3) == 0.01 * engines
        assert {e.version for e in world.engines} == {3}

    play(lambda: World(engines), scenario)


@pytest.mark.parametrize("call", ["start", "begin_update", "receive_files", "verify"])
def test_a_restart_may_fail_too(call: str) -> None:
    async def scenario(world: World) -> None:
        await world.publish(4)
        world.engines[0].die()
        world.engines[0].dies_at = [call]
        await world.until(lambda: world.supervisor.restarts == 2)
        await world.all_serve(4)

    world = play(lambda: World(1), scenario)
    assert "did not come back" in world.told[1]


def test_a_restarted_engine_with_wrong_weights_is_started_once_more() -> None:
    async def scenario(world: World) -> None:
        await world.publish(4)
        world.engines[0].die()
        world.engines[0].wrong_weights = 1
        await world.all_serve(4)
        await sampled(world, 2)

    world = play(lambda: World(1), scenario)
    assert world.supervisor.restarts == 2


def test_wrong_weights_in_a_sync_end_the_run() -> None:
    async def scenario(world: World) -> None:
        world.engines[0].wrong_weights = 1
        await world.publish(1)

    with pytest.raises(SyncError, match="differs"):
        play(World, scenario)


def test_an_engine_comes_back_only_between_training_steps() -> None:
    async def scenario(world: World) -> None:
        await world.publish(1)
        async with world.sync.learner_busy():
            world.engines[0].die()
            await world.until(lambda: world.engines[0].loaded)
            await asyncio.sleep(0.05)
            assert not world.engines[0].serving.is_set()
            await world.sync.publish(2)
        await world.all_serve(2)

    assert "version 2" in play(World, scenario).told[-1]


def test_the_last_restart_is_the_last() -> None:
    async def scenario(world: World) -> None:
        await world.publish(1)
        world.engines[0].dies_at = ["generate"] * 9
        await sampled(world, 2)

    with pytest.raises(BaseExceptionGroup) as caught:
        play(lambda: World(1, restarts=2), scenario)
    (error,) = caught.value.exceptions
    assert isinstance(error, EngineError)
    assert "engine 0 died, after all 2 restarts of generation.restarts" in str(error)


def test_the_run_goes_on_with_the_engines_that_are_left() -> None:
    async def scenario(world: World) -> None:
        await world.publish(1)
        world.engines[1].restartable = False
        world.engines[1].die()
        await world.until(lambda: len(world.told) == 1)
        assert set(await sampled(world, 6)) == {0}
        assert await world.publish(2) == 0.01
        assert await world.pools[0].counts()
        await asyncio.sleep(0.1)

    world = play(lambda: World(restarts=0), scenario)
    assert world.told == ["engine 1 died; the run goes on with 1 engines"]


def test_below_the_minimum_requests_wait_for_a_restart() -> None:
    async def scenario(world: World) -> None:
        await world.publish(1)
        world.engines[1].dies_at = ["generate"]
        await sampled(world, 6)
        assert all(e.serving.is_set() for e in world.engines)

    play(lambda: World(min_engines=2), scenario)
    with pytest.raises(BaseExceptionGroup):
        play(lambda: World(min_engines=2, restarts=0), scenario)


def test_without_supervision_requests_do_not_wait_for_ever() -> None:
    async def main() -> None:
        engine = EngineProcess(0)
        engine.restartable = False
        engine.die()
        await GenerationPool([engine], patience_s=0.05).generate([request(1)])

    with pytest.raises(EngineError, match=r"for 0\.05 s fewer than generation.min_engines 1 of 1"):
        asyncio.run(main())


@pytest.mark.parametrize("engines", [1, 3])
def test_a_collective_forms_a_new_group_of_the_engines_that_live(engines: int) -> None:
    async def scenario(world: World) -> None:
        await world.publish(1)
        await world.publish(2)
        world.engines[0].die()
        await world.all_serve(2)
        await sampled(world, 4)
        await world.publish(3)
        assert {e.version for e in world.engines} == {3}

    world = play(lambda: World(engines, collective=True), scenario)
    whole = [(1 + i, 1 + engines) for i in range(engines)]
    assert world.groups == [whole, whole]


def test_a_collective_goes_on_without_an_engine_that_is_not_started_again() -> None:
    async def scenario(world: World) -> None:
        await world.publish(1)
        world.engines[0].restartable = False
        world.engines[0].die()
        await world.publish(2)  # nobody knows yet that the engine is dead
        await world.publish(3)
        assert [e.version for e in world.engines[1:]] == [3, 3]

    world = play(lambda: World(3, collective=True, restarts=0), scenario)
    assert world.groups == [[(1, 4), (2, 4), (3, 4)], [(1, 3), (2, 3)]]


def test_a_learner_that_waits_in_a_broadcast_for_a_dead_engine_is_given_up() -> None:
    async def scenario(world: World) -> None:
        await world.publish(1)
        world.engines[0].dies_at = ["receive_nccl"]
        world.source.stuck = True
        await world.publish(2)

    with pytest.raises(LearnerDied, match="waits in a broadcast"):
        play(lambda: World(collective=True), scenario)


def test_an_engine_leaves_a_drained_node_and_its_requests_go_to_the_others() -> None:
    async def scenario(world: World) -> None:
        await world.publish(1)
        world.homes.drained.add("0")
        await world.until(lambda: world.homes.moves == 1)
        assert set(await sampled(world, 6)) == {1}
        await asyncio.sleep(0.5)  # longer than restart_s, which is not for waiting for a node
        assert world.supervisor.alive == 1
        world.homes.spare.append("new")
        await world.all_serve(1)
        await world.until(lambda: world.supervisor.alive == 2)

    world = play(lambda: World(restarts=0, restart_s=0.3), scenario)
    assert world.told == [
        "engine 0 stands on a node that is drained; it is started on another node, and its "
        "requests are sampled again with the same seeds",
        "engine 0 waits for a node with room for it",
        "engine 0 serves again with the weights of version 1",
    ]


def test_the_last_engine_stays_on_a_drained_node_until_another_has_room() -> None:
    async def scenario(world: World) -> None:
        await world.publish(1)
        world.homes.drained.add("0")
        assert set(await sampled(world, 4)) == {0}
        await asyncio.sleep(0.05)
        assert world.homes.moves == 0
        world.homes.spare.append("new")
        await world.until(lambda: world.homes.moves == 1)
        await world.all_serve(1)
        assert set(await sampled(world, 4)) == {0}

    play(lambda: World(1), scenario)


def test_an_engine_does_not_leave_while_weights_travel() -> None:
    async def scenario(world: World) -> None:
        world.engines[1].hangs_at = "finish_update"
        publishing = asyncio.create_task(world.publish(1))
        await world.until(lambda: world.engines[1].hanging)
        world.homes.drained.add("0")
        await asyncio.sleep(0.03)
        assert world.homes.moves == 0
        await publishing
        await world.until(lambda: world.homes.moves == 1)

    play(World, scenario)


def test_an_engine_that_lost_its_node_keeps_its_restarts() -> None:
    async def scenario(world: World) -> None:
        await world.publish(1)
        for name in ("a", "b", "c"):
            world.homes.lose(0)
            await world.until(lambda: world.supervisor.alive == 1)
            world.homes.spare.append(name)
            await world.until(lambda: world.supervisor.alive == 2)
        assert world.supervisor.restarts == 3

    world = play(lambda: World(restarts=1), scenario)
    assert world.told.count("engine 0 serves again with the weights of version 1") == 3
