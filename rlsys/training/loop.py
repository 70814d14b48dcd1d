"""The main loop.

    produce   waits for a free slot of the buffer, which release frees; rolls out the next group
    train     waits for the next batch of groups, which produce fills; then
              batch -> learner.step -> publish weights v+1 -> release -> report, evaluate, save

A synchronous run is the same loop with `max_staleness: 0`. The policy version is the number of
finished training steps. Without dynamic sampling, group i is trained at version i // problems per
step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from rlsys.config import RunConfig
from rlsys.data.problems import TaskStream
from rlsys.errors import LearnerDied, TrainingError
from rlsys.training.baseline_metrics import baseline_metrics
from rlsys.training.buffer import GroupBuffer, StepGroups
from rlsys.training.checkpoints import CheckpointStore
from rlsys.training.evaluation import evaluate_policy
from rlsys.training.health import Health
from rlsys.training.ledger import fate_metrics, group_fates
from rlsys.training.metrics import Stopwatch, step_metrics
from rlsys.training.protocols import (
    Departure,
    FinishedGroup,
    GroupRunner,
    Learner,
    Reporter,
    Weights,
)
from rlsys.training.watchdog import Progress
from rlsys.types import Task

T = TypeVar("T")

SKIPPED_IN_ROW = "skipped_in_row"
"""Metric of the learner: optimizer steps at the end of the step that were not finite."""
LOSS = "loss"
"""Metric of the learner; missing if every optimizer step of the training step was skipped."""


@dataclass(slots=True)
class StopSignal:
    """A request to stop, from SIGTERM or Ctrl-C. The run then saves a checkpoint and ends."""

    _event: asyncio.Event = field(default_factory=asyncio.Event)

    def set(self) -> None:
        """Ask the loop to stop."""
        self._event.set()

    def is_set(self) -> bool:
        """True after `set` was called."""
        return self._event.is_set()

    async def wait(self) -> None:
        """Wait until `set` is called."""
        await self._event.wait()


async def unless_stopped(stop: StopSignal, work: Coroutine[object, object, T]) -> T | None:
    """Await `work` and return its result. A stop request cancels it; the result is then None."""
    if stop.is_set():
        work.close()
        return None
    tasks = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        # Both tasks may be done at once. The result must win then: `work` may have taken groups out
        # of the buffer, and dropping them here would lose them, because no checkpoint has them.
        return tasks[0].result() if tasks[0].done() else None
    finally:
        for task in tasks:
            task.cancel()
        # Cancellation is only a request. Wait for it, so that no task still runs after the return.
        await asyncio.wait(tasks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of a run that the loop drives: actors, files and the user interface."""

    runner: GroupRunner
    learner: Learner
    weights: Weights
    checkpoints: CheckpointStore
    reporter: Reporter
    stop: StopSignal
    progress: Progress = field(default_factory=Progress)
    departure: Callable[[], Departure | None] = lambda: None
    """Returns why the learner should leave its nodes, None if it need not."""
    extra_metrics: Callable[[], Awaitable[Mapping[str, float]]] | None = None
    """Returns further metrics of the step: audited grading, engines that died."""
    after_step: Callable[[int], Awaitable[None]] | None = None
    """Gets every finished step, between two steps of the learner."""


async def train(
    config: RunConfig,
    parts: Parts,
    problems: TaskStream[Task],
    held_out: Sequence[Task],
    *,
    start: int,
    first_group: int,
    finished: Mapping[int, FinishedGroup],
) -> int:
    """Train from step `start` to config.steps and return the last finished step.

    Args:
        config: configuration of the run.
        parts: what the loop drives.
        problems: the problem of every group, by ticket.
        held_out: problems of the evaluation.
        start: training steps that are finished.
        first_group: ticket of the first group that these steps did not take.
        finished: groups that were rolled out before a restart, by ticket. They are trained and not
            rolled out again.
    """
    batch = config.batch
    buffer = GroupBuffer(
        batch.problems,
        config.max_staleness,
        start=first_group,
        most_dropped=batch.most_sampled - batch.problems,
    )
    step, saves = start, _Saves(config, parts, buffer, start)
    health = Health(config)
    async with asyncio.TaskGroup() as tasks:
        producer = tasks.create_task(_produce(buffer, parts.runner, problems, finished))
        while step < config.steps:
            watch = Stopwatch()
            with parts.progress.waiting_for(f"the groups of training step {step + 1}"):
                groups = await unless_stopped(parts.stop, buffer.take())
            if groups is None:
                break
            watch.lap("generation")
            _check_staleness(groups.kept, step, config.max_staleness)
            trained, gap = await _train_and_publish(parts, step, groups.kept, watch)
            # Release only after the new weights are live. A group that is admitted earlier would
            # be sampled by older weights than the staleness bound allows.
            await buffer.release()
            step += 1
            await _report(config, parts, health, step, groups, trained, watch, gap, buffer)
            if parts.after_step is not None:
                await parts.after_step(step)
            if _due(step, config.evaluation.every, config.steps):
                evaluation = evaluate_policy(parts.runner, held_out, parts.reporter, step)
                with parts.progress.waiting_for(f"the evaluation after step {step}"):
                    await unless_stopped(parts.stop, evaluation)
            await saves.after_step(step, sound=not trained.get(SKIPPED_IN_ROW))
            if step < config.steps and (departure := parts.departure()) is not None:
                await saves.before(departure, step)
        # Cancel the producer, do not wait for it: it rolls out groups without end, and the groups
        # in progress belong to steps that this process does not train. The checkpoint stores the
        # finished groups. A resumed run rolls out the unfinished groups again, with the same seeds.
        producer.cancel()
        await saves.at_the_end(step)
    return step


async def _train_and_publish(
    parts: Parts, step: int, groups: Sequence[FinishedGroup], watch: Stopwatch
) -> tuple[Mapping[str, float], float]:
    """Train step `step` + 1 and bring its weights to the engines; return metrics and canary gap."""
    # An engine that comes back in between waits: the ranks do one thing at a time.
    async with parts.weights.learner_busy():
        with parts.progress.waiting_for(f"the learner in training step {step + 1}"):
            trained = await parts.learner.step(groups)
        watch.lap("training")
        with parts.progress.waiting_for(f"the weight sync after step {step + 1}"):
            gap = await parts.weights.publish(step + 1)
        watch.lap("sync")
    return trained, gap


class _Saves:
    """Saves checkpoints when they are due, but never weights that may be ruined.

    Weights whose gradient is not finite may be ruined. They are not saved before an optimizer step
    succeeds with them, so that the newest checkpoint is one to go on from.
    """

    def __init__(self, config: RunConfig, parts: Parts, buffer: GroupBuffer, start: int) -> None:
        self._config = config
        self._parts = parts
        self._buffer = buffer
        self._saved = start
        self._due, self._sound = False, True

    async def after_step(self, step: int, *, sound: bool) -> None:
        """Save if a checkpoint is due; one that is due while steps are skipped follows later."""
        self._sound = sound
        self._due |= _due(step, self._config.checkpoint.every, self._config.steps)
        if self._due and sound:
            await self._save(step)

    async def before(self, departure: Departure, step: int) -> None:
        """Save before a node of the learner leaves; raise LearnerDied if it can move right now."""
        if step > self._saved and self._sound:
            await self._save(step)
        if departure.movable and step == self._saved:
            raise LearnerDied(departure.reason)

    async def at_the_end(self, step: int) -> None:
        """Save the last step unless it is saved, or say why it is not."""
        if step > self._saved and self._sound:
            await self._save(step)
        elif step > self._saved:
            self._parts.reporter.message(
                f"step {step} is not saved, because its last optimizer step was not finite; the "
                f"same command goes on from step {self._saved}"
            )

    async def _save(self, step: int) -> None:
        # An engine that comes back waits: the weight sync that it needs has a deadline, and the
        # ranks would begin it only after the checkpoint.
        async with self._parts.weights.learner_busy():
            with self._parts.progress.waiting_for(f"the checkpoint after step {step}"):
                await self._parts.checkpoints.save(
                    step, self._parts.learner, self._buffer.finished(), self._buffer.next
                )
        self._saved, self._due = step, False


async def _produce(
    buffer: GroupBuffer,
    runner: GroupRunner,
    problems: TaskStream[Task],
    finished: Mapping[int, FinishedGroup],
) -> None:
    """Roll out groups without end, one for each free slot. If a rollout fails, the run ends."""

    async def roll_out(ticket: int) -> None:
        group = finished.get(ticket)
        if group is None:
            group = await runner.train_group(ticket, problems.task(ticket))
        await buffer.finish(ticket, group)

    # The TaskGroup raises the error of any rollout, which cancels the loop in `train` too. A task
    # without a group would lose the error, and training would wait for that group without end.
    async with asyncio.TaskGroup() as tasks:
        while True:
            tasks.create_task(roll_out(await buffer.admit()))


def _check_staleness(groups: Sequence[FinishedGroup], version: int, bound: int) -> None:
    """Raise TrainingError for a group that is staler than `bound`.

    The buffer guarantees the bound. A violation is a bug, and training on such data would hide it.
    """
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
    health: Health,
    step: int,
    groups: StepGroups,
    trained: Mapping[str, float],
    watch: Stopwatch,
    gap: float,
    buffer: GroupBuffer,
) -> None:
    # Dropped groups count in scores and shares too: the metrics describe the policy on the problems
    # of the data, and not only on those that happen to give a signal.
    reports = [g.report for g in groups.all]
    applied = LOSS in trained
    dropped = {g.report.index for g in groups.dropped}
    fates = group_fates(
        reports, step=step, applied=applied, admitted=buffer.admitted, without_signal=dropped
    )
    parts.reporter.fates(fates)
    metrics = step_metrics(reports, version=step - 1)
    metrics |= baseline_metrics(reports, config)
    metrics |= fate_metrics(fates)
    metrics |= trained
    metrics |= {f"time/{name}": seconds for name, seconds in watch.laps.items()}
    metrics |= {"time/step": watch.total, "gap/canary": gap}
    metrics["queue"] = float(len(buffer.finished()))
    sampled = sum(r.sampled_tokens for r in reports)
    # Divided by the time of the whole step, because generation continues while the learner trains.
    metrics["tokens_per_s/generation"] = sampled / watch.total
    metrics["busy/learner"] = watch.laps["training"] / watch.total
    metrics |= await parts.runner.engine_metrics()
    if parts.extra_metrics is not None:
        metrics |= await parts.extra_metrics()
    warnings = health.warnings(metrics)
    parts.reporter.step(step, metrics | health.standing)
    parts.reporter.episodes(step, [reports[0].example])
    for warning in warnings:
        parts.reporter.message(f"warning: {warning}")


def _due(step: int, every: int, last: int) -> bool:
    """True after every `every` steps, except after the last step, which is handled at the end."""
    return every > 0 and step % every == 0 and step < last
