"""What a run asks of Ray, and how its errors come to the surface."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from typing import Any, NoReturn

import psutil
import pytest
from ray.exceptions import ActorDiedError

from rlsys.config import RunConfig
from rlsys.errors import EngineError, RlsysError
from rlsys.launch.placement import learner_environment, reserve_placement
from rlsys.launch.resources import colocated, placed_bundles
from rlsys.launch.session import ray_session, run


def config(learner: dict[str, Any], generation: dict[str, Any]) -> RunConfig:
    return RunConfig.model_validate({"learner": learner, "generation": generation})


@pytest.mark.slow
def test_a_session_holds_what_the_run_asks_for_and_places_ranks_before_engines() -> None:
    asked = config({"ranks": 2, "cpus_per_rank": 2.5}, {"engines": 1, "cpus_per_engine": 3})

    async def main() -> list[tuple[float, int, str]]:
        placement = await reserve_placement(asked)
        asked_for: list[dict[str, Any]] = [*placement.ranks, *placement.engines]
        return [
            (
                options["num_cpus"],
                options["scheduling_strategy"].placement_group_bundle_index,
                options["runtime_env"]["env_vars"]["OMP_NUM_THREADS"],
            )
            for options in asked_for
        ]

    with ray_session(asked):
        import ray

        sleeper = psutil.Process(ray.get(ray.remote(start_sleeper).remote()))
        assert ray.cluster_resources()["CPU"] == 2.5 + 2.5 + 3 + 2  # and two services
        assert run(main()) == [(2.5, 0, "2"), (2.5, 1, "2"), (3.0, 0, "3")]
    assert not ray.is_initialized()
    sleeper.wait(60)  # killed at the end of the session


def start_sleeper() -> int:
    """Start a process of a process that has ended, which Ray leaves alone; return its id."""
    shell = ["sh", "-c", "setsid sleep 1000 > /dev/null 2>&1 & echo $!"]
    return int(subprocess.run(shell, capture_output=True, check=True).stdout)


def test_parts_of_a_card_are_shared_and_whole_cards_are_not() -> None:
    parts = config({"ranks": 2, "gpus_per_rank": 0.6}, {"engines": 1, "gpus_per_engine": 0.4})
    assert colocated(parts.learner, parts.generation)
    assert [(b.cpus, b.gpus) for b in placed_bundles(parts)] == [(2, 1), (2, 1)]
    whole = config({"gpus_per_rank": 1}, {"gpus_per_engine": 2, "tensor_parallel": 2})
    assert not colocated(whole.learner, whole.generation)
    assert [(b.cpus, b.gpus) for b in placed_bundles(whole)] == [(1, 1), (1, 2)]


def test_a_rank_on_a_card_takes_its_threads_from_the_system() -> None:
    gpu = learner_environment(config({"gpus_per_rank": 1}, {}).learner)
    assert gpu == {"DS_ACCELERATOR": "cuda"}


def raised_by(*errors: BaseException) -> BaseException:
    """What `run` raises when tasks of nested groups fail with `errors`."""

    async def fail(error: BaseException) -> NoReturn:
        raise error

    async def main() -> None:
        async with asyncio.TaskGroup() as outer:
            for error in errors:
                outer.create_task(nested(error))

    async def nested(error: BaseException) -> None:
        async with asyncio.TaskGroup() as inner:
            inner.create_task(fail(error))

    with pytest.raises(BaseException) as caught:
        run(main())
    return caught.value


def test_our_own_error_is_found_among_others() -> None:
    ours = EngineError("engine 1 died")
    assert raised_by(OSError("a consequence"), ours) is ours
    assert str(raised_by(OSError("alone"))) == "alone"


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stop_signal_lets_the_run_clean_up(sign: signal.Signals) -> None:
    log: list[str] = []

    async def main() -> None:
        asyncio.get_running_loop().call_later(0.01, signal.raise_signal, sign)
        try:
            await asyncio.sleep(60)
        finally:
            signal.raise_signal(sign)  # a scheduler that asks twice
            await asyncio.sleep(0.01)
            log.append("cleaned up")

    before = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        with pytest.raises(KeyboardInterrupt):
            run(main())
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert log == ["cleaned up"]


def test_a_dead_actor_is_one_sentence() -> None:
    async def main() -> None:
        raise ActorDiedError

    with pytest.raises(RlsysError) as caught:
        run(main())
    for error in (caught.value, raised_by(ActorDiedError())):
        assert isinstance(error, RlsysError)
        assert str(error) == (
            "a process of the run died; give the same command again to go on from the last "
            "checkpoint (The actor died unexpectedly before finishing this task.)"
        )
