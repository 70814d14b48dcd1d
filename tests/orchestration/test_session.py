"""What a run asks of Ray, and how its errors come to the surface."""

from __future__ import annotations

import asyncio
from typing import Any, NoReturn

import pytest
from ray.exceptions import ActorDiedError

from rlsys.config import RunConfig
from rlsys.errors import EngineError, RlsysError
from rlsys.orchestration.launch.session import bundles, colocated, learner_environment, run


def config(learner: dict[str, Any], generation: dict[str, Any]) -> RunConfig:
    return RunConfig.model_validate({"learner": learner, "generation": generation})


def test_ranks_come_first_and_then_engines() -> None:
    asked = config({"ranks": 2, "cpus_per_rank": 3}, {"engines": 1, "cpus_per_engine": 2})
    assert not colocated(asked)
    assert bundles(asked) == [{"CPU": 3}, {"CPU": 3}, {"CPU": 2}]


def test_whole_cards_are_not_shared() -> None:
    asked = config({"gpus_per_rank": 1}, {"gpus_per_engine": 2, "tensor_parallel": 2})
    assert not colocated(asked)
    assert bundles(asked) == [{"CPU": 1, "GPU": 1}, {"CPU": 1, "GPU": 2}]


def test_a_rank_and_an_engine_that_ask_for_parts_share_a_card() -> None:
    asked = config({"ranks": 2, "gpus_per_rank": 0.6}, {"engines": 1, "gpus_per_engine": 0.4})
    assert colocated(asked)
    assert bundles(asked) == [{"CPU": 2, "GPU": 1}, {"CPU": 2, "GPU": 1}]


def test_a_rank_on_the_cpu_has_as_many_threads_as_cores() -> None:
    cpu = learner_environment(config({"cpus_per_rank": 2.5}, {}).learner)
    assert (cpu["DS_ACCELERATOR"], cpu["OMP_NUM_THREADS"]) == ("cpu", "2")
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
