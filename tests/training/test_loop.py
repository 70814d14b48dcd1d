"""The main loop on hand-written parts: what is called, in which order, and what survives a stop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from checkpoints import Ready
from finished_groups import report

from rlsys.config import RunConfig
from rlsys.data.problems import TaskStream
from rlsys.environments.report import GroupReport
from rlsys.errors import EngineError, LearnerDied, TrainingError
from rlsys.training.checkpoints import CheckpointStore
from rlsys.training.ledger import GroupFate, summarise
from rlsys.training.loop import Parts, StopSignal, train
from rlsys.training.protocols import Departure, FinishedGroup
from rlsys.types import Problem, Task

PROBLEMS = [Problem(id=f"p{i}", text=f"{i}+1", answer=str(i + 1)) for i in range(100)]
HELD_OUT = [Problem(id="held-out", text="1+1", answer="2")]


class World:
    """Every part of a run in one object, with one log of what happened to it."""

    def __init__(self, folder: Path) -> None:
        self.log: list[str] = []
        self.version = 0
        self.grown: dict[int, str] = {}
        """Problem id by ticket."""
        self.trained: list[int] = []
        self.metrics: dict[int, dict[str, float]] = {}
        self.stop = StopSignal()
        self.told: list[str] = []
        self.fates: list[GroupFate] = []
        self.skipping: set[int] = set()
        """Steps whose last optimizer step is skipped."""
        self.checkpoints = CheckpointStore(folder, 100, self.told.append)
        self.stop_in_step = 0
        self.lag = 0
        """How many versions older than the weights a group claims to be."""
        self.fails_at = -1
        self.without_signal: frozenset[int] = frozenset()
        """Tickets of groups whose advantages are all 0."""
        self.departures: dict[int, Departure] = {}
        """What the learner's nodes do after a step."""

    @property
    def parts(self) -> Parts:
        return Parts(
            runner=self,
            learner=Learner(self),
            weights=self,
            checkpoints=self.checkpoints,
            reporter=Reporter(self),
            stop=self.stop,
            departure=lambda: self.departures.pop(self.version, None),
        )

    async def train_group(self, index: int, task: Task) -> FinishedGroup:
        started_at = self.version
        await asyncio.sleep(0)
        if index == self.fails_at:
            raise EngineError("engine 0 died")
        self.grown[index] = task.id
        return group(index, started_at - self.lag, signal=index not in self.without_signal)

    async def evaluate_group(self, index: int, task: Task) -> GroupReport:
        self.log.append(f"evaluate {task.id} at version {self.version}")
        return report(0, self.version)

    async def engine_metrics(self) -> dict[str, float]:
        return {"prefix_cache/share": 0.5}

    @asynccontextmanager
    async def learner_busy(self) -> AsyncIterator[None]:
        yield

    async def publish(self, version: int) -> float:
        for _ in range(20):  # whatever is admitted before the weights are live begins meanwhile
            await asyncio.sleep(0)
        self.version = version
        self.log.append(f"publish {version}")
        return 1e-6


class Learner:
    def __init__(self, world: World) -> None:
        self._world = world

    async def step(self, groups: Sequence[FinishedGroup]) -> dict[str, float]:
        tickets = [g.report.index for g in groups]
        self._world.trained += tickets
        self._world.log.append(f"train {tickets}")
        if len(self._world.trained) // len(tickets) == self._world.stop_in_step:
            self._world.stop.set()
        for _ in range(20):  # long enough for everything admitted to be grown meanwhile
            await asyncio.sleep(0)
        skipped = len(self._world.trained) // len(tickets) in self._world.skipping
        return {"loss": 0.25, "skipped_in_row": float(skipped)}

    async def save(self, folder: Path) -> None:
        folder.mkdir()
        self._world.log.append(f"save {folder.parent.name}")

    async def export(self, folder: Path) -> None:
        raise AssertionError("the loop does not export")


class Reporter:
    def __init__(self, world: World) -> None:
        self._world = world

    def step(self, step: int, metrics: dict[str, float]) -> None:
        self._world.metrics[step] = metrics
        self._world.log.append(f"report {step}")

    def episodes(self, step: int, episodes: list[dict[str, Any]]) -> None:
        assert self._world.without_signal or episodes == [{"group": (step - 1) * 2}]

    def fates(self, fates: Sequence[GroupFate]) -> None:
        self._world.fates += fates

    def evaluation(self, step: int, numbers: dict[str, float], episodes: Any) -> None:
        self._world.log.append(f"curve {step} {numbers['score/16']} {numbers['score/64']}")

    def rewind(self, step: int) -> None:
        raise AssertionError("the loop does not go back")

    def message(self, text: str) -> None:
        self._world.told.append(text)


def group(index: int, version: int, *, signal: bool = True) -> FinishedGroup:
    whole = replace(report(index, version), signal=signal)
    return FinishedGroup(report=whole, samples=Ready(()))


def configuration(steps: int, staleness: int = 0, **sections: Any) -> RunConfig:
    return RunConfig.model_validate(
        {
            "steps": steps,
            "batch": {"problems": 2, "group_size": 2},
            "environment": {"type": "anytime", "budgets": [16, 64]},
            "rollout": {"max_staleness": staleness},
            "checkpoint": {"every": 0},
            **sections,
        }
    )


def run(
    world: World,
    config: RunConfig,
    *,
    start: int = 0,
    first_group: int | None = None,
    finished: Mapping[int, FinishedGroup] | None = None,
) -> int:
    problems: TaskStream[Task] = TaskStream(PROBLEMS, seed=0, shuffle=False)

    async def main() -> int:
        world.version = start
        return await train(
            config,
            world.parts,
            problems,
            HELD_OUT,
            start=start,
            first_group=start * 2 if first_group is None else first_group,
            finished=finished or {},
        )

    return asyncio.run(main())


def test_a_synchronous_run_in_order(tmp_path: Path) -> None:
    world = World(tmp_path)
    assert run(world, configuration(steps=2)) == 2
    assert world.log == [
        "train [0, 1]",
        "publish 1",
        "report 1",
        "train [2, 3]",
        "publish 2",
        "report 2",
        "save .step-2.partial",
    ]
    assert world.grown == {ticket: f"p{ticket}" for ticket in range(len(world.grown))}
    first = world.metrics[1]
    assert first["loss"] == 0.25
    assert (first["score/16"], first["score/64"], first["score/mean"]) == (0.25, 1.0, 0.625)
    assert (first["thought/length"], first["thought/closed"]) == (15.0, 0.5)
    assert first["answers/invalid"] == 0.25
    assert (first["gap/canary"], first["prefix_cache/share"]) == (1e-6, 0.5)
    assert first["tokens_per_s/generation"] == pytest.approx(80 / first["time/step"])
    assert [world.metrics[s]["staleness/max"] for s in (1, 2)] == [0.0, 0.0]


def test_a_bound_lets_generation_run_ahead_and_no_further(tmp_path: Path) -> None:
    world = World(tmp_path)
    run(world, configuration(steps=6, staleness=2))
    assert world.trained == list(range(12))
    assert [world.metrics[s]["staleness/max"] for s in range(1, 7)] == [0, 1, 2, 2, 2, 2]
    assert max(world.metrics[s]["queue"] for s in range(1, 7)) <= 2 * 2


def test_every_group_has_one_fate_and_the_rest_is_in_flight(tmp_path: Path) -> None:
    world = World(tmp_path)
    run(world, configuration(steps=3, staleness=2))
    summary = summarise(world.fates)
    assert (summary.whole, summary.trained, summary.dropped) == (True, 6, {})
    # Staleness 2: the groups of two further steps were admitted before the last step ended.
    assert summary.in_flight == range(6, 10)
    assert world.metrics[3]["groups/trained"] == 2
    assert world.metrics[3]["groups/in_flight"] == 4
    assert [fate.group for fate in world.fates if fate.step == 2] == [2, 3]


DYNAMIC: dict[str, Any] = {"batch": {"problems": 2, "group_size": 2, "dynamic_sampling": 2}}


@pytest.mark.parametrize("staleness", [0, 2])
def test_groups_without_signal_are_dropped_and_replaced(tmp_path: Path, staleness: int) -> None:
    world = World(tmp_path)
    world.without_signal = frozenset({1, 4, 5, 6})
    assert run(world, configuration(4, staleness, **DYNAMIC)) == 4
    # Step 3 may drop two groups; group 6 stays.
    assert world.trained == [0, 2, 3, 6, 7, 8, 9, 10]
    summary = summarise(world.fates)
    assert (summary.whole, summary.trained, summary.dropped) == (True, 8, {"no signal": 3})
    assert [(f.step, f.group) for f in world.fates if f.fate == "dropped"] == [
        (1, 1),
        (2, 4),
        (2, 5),
    ]
    assert [world.metrics[s]["groups/dropped"] for s in (1, 2, 3)] == [1, 2, 0]
    assert max(world.metrics[s]["staleness/max"] for s in range(1, 5)) <= staleness


@pytest.mark.parametrize("staleness", [0, 1])
def test_a_resumed_run_drops_the_same_groups(tmp_path: Path, staleness: int) -> None:
    config = configuration(6, staleness, **DYNAMIC)
    whole, cut, rest = World(tmp_path / "whole"), World(tmp_path / "cut"), World(tmp_path / "rest")
    for world in (whole, cut, rest):
        world.without_signal = frozenset({0, 1, 3, 7, 9, 10, 11, 12})
    run(whole, config)
    cut.stop_in_step = 3
    run(cut, config)
    saved = cut.checkpoints.latest()
    assert saved is not None
    kept = {g.ticket: FinishedGroup(report=g.report, samples=Ready(())) for g in saved.groups()}
    run(rest, config, start=3, first_group=saved.next_group(2), finished=kept)
    assert cut.trained + rest.trained == whole.trained
    lines = [(f.step, f.group, f.fate, f.reason) for f in cut.fates + rest.fates]
    assert lines == [(f.step, f.group, f.fate, f.reason) for f in whole.fates]


def test_a_checkpoint_that_names_no_group_has_steps_of_equal_size(tmp_path: Path) -> None:
    world = World(tmp_path)
    run(world, configuration(2))
    saved = world.checkpoints.latest()
    assert saved is not None
    assert saved.next_group(per_step=99) == 4
    state = saved.folder / "state.json"
    state.write_text(state.read_text().replace('"next_group": 4', '"next_group": null'))
    assert saved.next_group(per_step=2) == 4


def test_evaluation_and_checkpoints_keep_their_cadence(tmp_path: Path) -> None:
    world = World(tmp_path)
    run(world, configuration(steps=6, checkpoint={"every": 3}, evaluation={"every": 2}))
    told = [line for line in world.log if not line.startswith(("train", "publish", "report"))]
    assert told == [
        "evaluate held-out at version 2",
        "curve 2 0.25 1.0",
        "save .step-3.partial",
        "evaluate held-out at version 4",
        "curve 4 0.25 1.0",
        # the evaluation after the last step is the caller's
        "save .step-6.partial",
    ]


def test_weights_whose_gradient_is_not_finite_are_not_saved(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.skipping = {3, 4, 7}
    assert run(world, configuration(steps=7, checkpoint={"every": 3})) == 7
    # Step 3 was due and is saved as soon as a step succeeds; the last step never is.
    assert [line for line in world.log if "save" in line] == [
        "save .step-5.partial",
        "save .step-6.partial",
    ]
    # Half of the thoughts of this world are cut, which is warned of once.
    warning, sentence = world.told
    assert warning.startswith("warning: 50% of the thoughts were cut")
    assert "step 7 is not saved" in sentence and "from step 6" in sentence


def test_a_learner_whose_node_leaves_is_saved_and_moves_if_it_can(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.departures = {2: Departure("drained", movable=False), 4: Departure("drained", True)}
    with pytest.raises(BaseExceptionGroup) as caught:
        run(world, configuration(steps=9))
    error: BaseException = caught.value
    while isinstance(error, BaseExceptionGroup):
        (error,) = error.exceptions
    assert isinstance(error, LearnerDied)
    assert [line for line in world.log if "save" in line or "train" in line] == [
        "train [0, 1]",
        "train [2, 3]",
        "save .step-2.partial",
        "train [4, 5]",
        "train [6, 7]",
        "save .step-4.partial",
    ]


def test_weights_that_may_be_ruined_do_not_move(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.skipping = {2}
    world.departures = {2: Departure("drained", movable=True)}
    assert run(world, configuration(steps=3)) == 3


@pytest.mark.parametrize("staleness", [0, 2])
def test_a_stop_finishes_the_step_and_saves(tmp_path: Path, staleness: int) -> None:
    world = World(tmp_path)
    world.stop_in_step = 3
    assert run(world, configuration(steps=50, staleness=staleness)) == 3
    assert world.trained == [0, 1, 2, 3, 4, 5]
    assert world.log[-2:] == ["report 3", "save .step-3.partial"]
    saved = world.checkpoints.latest()
    assert saved == (3, tmp_path / "step-3")
    assert sorted(g.ticket for g in saved.groups()) == list(range(6, 6 + 2 * staleness))
    assert world.told == []


def test_a_stop_before_the_first_step_trains_and_saves_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.stop.set()
    assert run(world, configuration(steps=5)) == 0
    assert world.trained == []
    assert world.checkpoints.latest() is None


def test_a_stop_does_not_wait_for_an_evaluation(tmp_path: Path) -> None:
    class Slow(World):
        async def evaluate_group(self, index: int, task: Task) -> GroupReport:
            self.stop.set()
            await asyncio.get_running_loop().create_future()
            raise AssertionError("nobody ends this evaluation")

    world = Slow(tmp_path)
    assert run(world, configuration(steps=50, evaluation={"every": 2})) == 2
    assert world.log[-2:] == ["report 2", "save .step-2.partial"]


def test_a_resumed_run_trains_what_was_grown_and_grows_the_rest(tmp_path: Path) -> None:
    world = World(tmp_path)
    kept = {7: group(7, version=3), 8: group(8, version=3)}
    assert run(world, configuration(steps=6, staleness=1), start=3, finished=kept) == 6
    assert world.trained == [6, 7, 8, 9, 10, 11]
    assert set(kept) & set(world.grown) == set()
    assert {t: world.grown[t] for t in (6, 9, 10, 11)} == {6: "p6", 9: "p9", 10: "p10", 11: "p11"}
    assert sorted(world.metrics) == [4, 5, 6]


def test_a_run_that_is_complete_does_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    assert run(world, configuration(steps=4), start=4) == 4
    assert world.log == []


def test_a_group_beyond_the_bound_is_an_error(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.lag = 2
    with pytest.raises(ExceptionGroup) as caught:
        run(world, configuration(steps=3, staleness=1))
    (error,) = caught.value.exceptions
    assert isinstance(error, TrainingError)
    assert str(error) == (
        "a group sampled at version -2 reached training at version 0, beyond "
        "rollout.max_staleness 1"
    )
    assert world.trained == []


def test_a_group_that_fails_to_grow_ends_the_run(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.fails_at = 3
    with pytest.raises(ExceptionGroup) as caught:
        run(world, configuration(steps=50))
    ours, rest = caught.value.split(EngineError)
    assert ours is not None
    assert rest is None
    assert world.trained == [0, 1]
