"""The main loop.

    produce   waits for a slot of the buffer; grows the next group; unblocked by release
    train     waits for the next batch of groups; unblocked by produce's groups
              batch -> learner.step -> publish weights v+1 -> release -> report, evaluate, save

`max_staleness: 0` is the synchronous run; there is no second loop. The policy version is the count
of finished training steps, so group i is trained at version i // problems per step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from rlsys.config import RunConfig
from rlsys.data.problems import TaskStream
from rlsys.errors import TrainingError
from rlsys.training.buffer import GroupBuffer
from rlsys.training.checkpoints import CheckpointStore
from rlsys.training.evaluation import evaluate
from rlsys.training.metrics import Stopwatch, step_metrics
from rlsys.training.protocols import (
    FinishedGroup,
    GroupRunner,
    Learner,
    Reporter,
    Weights,
)
from rlsys.types import Task

T = TypeVar("T")

SKIPPED_IN_ROW = "skipped_in_row"
"""Metric of the learner: optimizer steps at the end of the step that were not finite."""


@dataclass(slots=True)
class StopSignal:
    """Set by SIGTERM or Ctrl-C: the run saves what it has and ends."""

    _event: asyncio.Event = field(default_factory=asyncio.Event)

    def set(self) -> None:
        """Ask the loop to stop."""
        self._event.set()

    def is_set(self) -> bool:
        """True once somebody asked."""
        return self._event.is_set()

    async def wait(self) -> None:
        """Return when somebody asks."""
        await self._event.wait()


async def unless_stopped(stop: StopSignal, work: Coroutine[object, object, T]) -> T | None:
    """Await `work`; None if a stop was asked for before it was done, which cancels it.

    A result that is there is always returned: groups that were taken from the buffer and dropped
    here would be in no checkpoint.
    """
    if stop.is_set():
        work.close()
        return None
    tasks = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return tasks[0].result() if tasks[0].done() else None
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The outside world of one run."""

    runner: GroupRunner
    learner: Learner
    weights: Weights
    checkpoints: CheckpointStore
    reporter: Reporter
    stop: StopSignal


async def train(
    config: RunConfig,
    parts: Parts,
    problems: TaskStream[Task],
    held_out: Sequence[Task],
    *,
    start: int,
    finished: Mapping[int, FinishedGroup],
) -> int:
    """Train from step `start` to config.steps and return the last finished step.

    `finished` are groups grown before a restart, by ticket; they are trained, not grown again.
    """
    per_step = config.batch.problems
    buffer = GroupBuffer((config.rollout.max_staleness + 1) * per_step, start * per_step)
    step, saved = start, start
    # Weights whose gradient is not finite may be ruined. They are not saved before an optimizer
    # step succeeds with them, so that the newest checkpoint is one to go on from.
    due, sound = False, True
    async with asyncio.TaskGroup() as tasks:
        producer = tasks.create_task(_produce(buffer, parts.runner, problems, finished))
        while step < config.steps:
            watch = Stopwatch()
            groups = await unless_stopped(parts.stop, buffer.take(per_step))
            if groups is None:
                break
            watch.lap("generation")
            _check_staleness(groups, step, config.rollout.max_staleness)
            trained = await parts.learner.step(groups)
            watch.lap("training")
            gap = await parts.weights.publish(step + 1)
            watch.lap("sync")
            await buffer.release(per_step)
            step += 1
            await _report(config, parts, step, groups, trained, watch, gap, len(buffer.finished()))
            if _due(step, config.evaluation.every, config.steps):
                evaluation = evaluate(parts.runner, held_out, parts.reporter, step)
                await unless_stopped(parts.stop, evaluation)
            due |= _due(step, config.checkpoint.every, config.steps)
            sound = not trained.get(SKIPPED_IN_ROW)
            if due and sound:
                await parts.checkpoints.save(step, parts.learner, buffer.finished())
                saved, due = step, False
        producer.cancel()
        if step > saved and sound:
            await parts.checkpoints.save(step, parts.learner, buffer.finished())
        elif step > saved:
            parts.reporter.message(
                f"step {step} is not saved, because its last optimizer step was not finite; the "
                f"same command goes on from step {saved}"
            )
    return step


async def _produce(
    buffer: GroupBuffer,
    runner: GroupRunner,
    problems: TaskStream[Task],
    finished: Mapping[int, FinishedGroup],
) -> None:
    """Grow groups for ever. Waits for a slot; a group that fails to grow ends the run."""

    async def grow(ticket: int) -> None:
        group = finished.get(ticket)
        if group is None:
            group = await runner.train_group(ticket, problems.task(ticket))
        await buffer.finish(ticket, group)

    async with asyncio.TaskGroup() as tasks:
        while True:
            tasks.create_task(grow(await buffer.admit()))


def _check_staleness(groups: Sequence[FinishedGroup], version: int, bound: int) -> None:
    """The buffer guarantees the bound; a violation is a bug in it, never data to train on."""
    sampled = [g.report.versions for g in groups if g.report.versions is not None]
    oldest = min((first for first, _ in sampled), default=version)
    if version - oldest > bound:
        raise TrainingError(
            f"a group sampled at version {oldest} reached training at version {version}, beyond "
            f"rollout.max_staleness {bound}"
        )


async def _report(
    config: RunConfig,
    parts: Parts,
    step: int,
    groups: Sequence[FinishedGroup],
    trained: Mapping[str, float],
    watch: Stopwatch,
    gap: float,
    queue: int,
) -> None:
    reports = [g.report for g in groups]
    metrics = step_metrics(reports, version=step - 1)
    metrics |= trained
    metrics |= {f"time/{name}": seconds for name, seconds in watch.laps.items()}
    metrics |= {"time/step": watch.total, "gap/canary": gap, "queue": float(queue)}
    sampled = sum(r.sampled_tokens for r in reports)
    # Of the whole step: generation may have gone on while the learner trained.
    metrics["tokens_per_s/generation"] = sampled / watch.total
    metrics["prefix_cache/share"] = await parts.runner.cached_share()
    parts.reporter.step(step, metrics)
    parts.reporter.episodes(step, [reports[0].example])


def _due(step: int, every: int, last: int) -> bool:
    """True after every `every` steps, except after the last one, which is handled at the end."""
    return every > 0 and step % every == 0 and step < last
