"""A learner that dies is started again, as often as the configuration says and no more."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from rlsys.config import RunConfig
from rlsys.errors import EngineError, LearnerDied
from rlsys.launch import training
from rlsys.launch.start import Start
from rlsys.launch.training import _Run
from rlsys.training.loop import StopSignal
from rlsys.training.watchdog import Progress


class Checkpoint(NamedTuple):
    step: int


class World:
    """Everything that a run needs around the learner; `deaths` are the errors of its attempts."""

    def __init__(self, *deaths: Exception) -> None:
        self.engines = SimpleNamespace(engines=[])
        self.homes = None
        self.services: dict[str, Any] = {}
        self.graders: list[Any] = []
        self.ranks: list[Any] = []
        self.rank_bundles: list[Any] = []
        self.actors: dict[str, Any] = {}
        self.deaths = list(deaths)
        self.log: list[str] = []
        self.learner = self

    def give_up(self, why: str) -> bool:
        raise AssertionError("nothing hangs here")

    def message(self, text: str) -> None:
        self.log.append(text)

    def rewind(self, step: int) -> None:
        self.log.append(f"rewind {step}")

    def latest(self) -> Checkpoint:
        return Checkpoint(step=4)

    async def restart(self, options: Any) -> None:
        self.log.append("restart")

    async def attempt(self, run: _Run, resumed: Any) -> bool:
        self.log.append(f"train from {resumed and resumed.step}")
        if self.deaths:
            raise self.deaths.pop(0)
        return True


def play(world: World, monkeypatch: pytest.MonkeyPatch, *, stopped: bool = False) -> bool:
    monkeypatch.setattr(training._Run, "_train_from", lambda run, at: world.attempt(run, at))
    place: Any = world

    async def main() -> bool:
        stop = StopSignal()
        if stopped:
            stop.set()
        run = _Run(
            config=RunConfig.model_validate({"learner": {"restarts": 2}}),
            inputs=place,
            processes=place,
            reporter=place,
            stop=stop,
            start=Start(Progress(), print),
            checkpoints=place,
            actors={},
        )
        return await run.to_the_end(None)

    return asyncio.run(main())


def died() -> LearnerDied:
    return LearnerDied("the process of learner rank 1 died; give the same command again")


def test_a_learner_is_started_again_from_the_last_checkpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The first death is seen by a task of the loop, the second one by the start of the attempt.
    world = World(ExceptionGroup("tasks", [ExceptionGroup("loop", [died()])]), died())
    assert play(world, monkeypatch)
    again = (
        "the learner is started again and goes on after step 4 (restarts left: {}): the process "
    )
    again += "of learner rank 1 died"
    assert world.log == [
        "train from None",
        *(again.format(1), "rewind 4", "restart", "train from 4"),
        *(again.format(0), "rewind 4", "restart", "train from 4"),
    ]


def test_restarts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(died(), died(), died())
    with pytest.raises(LearnerDied, match="rank 1 died"):
        play(world, monkeypatch)
    assert world.log.count("restart") == 2


def test_no_learner_is_started_again_after_a_stop_or_another_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(died())
    with pytest.raises(LearnerDied):
        play(world, monkeypatch, stopped=True)
    assert "restart" not in world.log
    world = World(ExceptionGroup("tasks", [EngineError("too few engines")]))
    with pytest.raises(ExceptionGroup):
        play(world, monkeypatch)
    assert "restart" not in world.log
