"""`rlsys train` and `rlsys eval`: start the processes, run the loop, take everything down."""

from __future__ import annotations

import asyncio
import gc
import time
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from rlsys.config import RunConfig
from rlsys.data.problems import TaskStream
from rlsys.environments.base import Inputs
from rlsys.errors import LearnerDied
from rlsys.launch.audit import GradingAudit
from rlsys.launch.gauges import GaugedReporter
from rlsys.launch.inputs import checked_inputs
from rlsys.launch.investigation import investigate
from rlsys.launch.leaving import Followed
from rlsys.launch.placement import reserve_elsewhere
from rlsys.launch.preflight import check_shared_memory
from rlsys.launch.processes import (
    Processes,
    environment_indices,
    evaluation_processes,
    training_processes,
)
from rlsys.launch.resuming import check_layout
from rlsys.launch.runner import stored_groups
from rlsys.launch.session import cause, ray_session, run
from rlsys.launch.start import Start
from rlsys.launch.supervision import EngineSupervisor
from rlsys.launch.trace import Tracer
from rlsys.launch.weights import connect
from rlsys.serving.writing import write_run_card
from rlsys.training.checkpoints import Checkpoint, CheckpointStore
from rlsys.training.durable import naming
from rlsys.training.evaluation import evaluate_policy, loss_warning
from rlsys.training.loop import Parts, StopSignal, unless_stopped
from rlsys.training.loop import train as run_loop
from rlsys.training.protocols import Reporter
from rlsys.training.run_folder import EXPORT, mark_finished, unmark_finished
from rlsys.training.watchdog import Progress, watch
from rlsys.training.weight_sync import WeightSync
from rlsys.types import GroupReport

if TYPE_CHECKING:
    from ray.actor import ActorHandle


def train(
    config: RunConfig,
    reporter: Reporter,
    checkpoints: CheckpointStore,
    resumed: Checkpoint | None,
    began: float | None = None,
) -> bool:
    """Train to config.steps, going on from `resumed`, a checkpoint of the run directory.

    `began` is when the command began, as time.monotonic(); None means now.

    Returns:
        False if SIGTERM or Ctrl-C ended the run early; what was finished is in its checkpoint.
    """
    start = Start(Progress(), reporter.message, began)
    with start.part("inputs"):
        inputs = checked_inputs(config, reporter.message)
        check_shared_memory(config)
    if resumed is not None:
        check_layout(config, resumed, reporter.message)
    with ExitStack() as session:
        with start.part("Ray"):
            session.enter_context(ray_session(config))
        shown = GaugedReporter(reporter, config.name)
        stop = StopSignal()
        return run(_train(config, inputs, shown, checkpoints, resumed, stop, start), stop.set)


def evaluate(config: RunConfig, reporter: Reporter, began: float | None = None) -> str | None:
    """Report the anytime curve of config.model on the held-out problems.

    `began` is when the command began, as time.monotonic(); None means now.

    Returns:
        A warning if some episodes were lost, else None.

    Raises:
        EpisodeLost: all were, which is reported as well.
    """
    start = Start(Progress(), reporter.message, began)
    with start.part("inputs"):
        inputs = checked_inputs(config, reporter.message)
    with ExitStack() as session:
        with start.part("Ray"):
            session.enter_context(ray_session(config))
        reports = run(_evaluate(config, inputs, reporter, start))
    return loss_warning(reports)


async def _train(
    config: RunConfig,
    inputs: Inputs,
    reporter: Reporter,
    checkpoints: CheckpointStore,
    resumed: Checkpoint | None,
    stop: StopSignal,
    start: Start,
) -> bool:
    """Start everything and train, under the watchdog."""
    progress = start.progress
    progress.moved()
    actors: dict[str, ActorHandle] = {}
    async with asyncio.TaskGroup() as tasks:
        watchdog = tasks.create_task(
            watch(
                progress,
                config.watchdog.progress_s,
                partial(investigate, actors, config.run_dir),
            )
        )
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(start.telling())
            starting = stack.enter_async_context(training_processes(config, inputs, start))
            processes = await unless_stopped(stop, starting)
            if processes is None:
                reporter.message(
                    "stopped while the processes started; the same command starts again"
                )
                finished = False
            else:
                training = _Run(
                    config=config,
                    inputs=inputs,
                    processes=processes,
                    reporter=reporter,
                    stop=stop,
                    start=start,
                    checkpoints=checkpoints,
                    actors=actors,
                )
                following = tasks.create_task(training.followed.watch())
                finished = await training.to_the_end(resumed)
                following.cancel()
        watchdog.cancel()
    return finished


@dataclass(slots=True, kw_only=True)
class _Run:
    """One training run in processes that were started."""

    config: RunConfig
    inputs: Inputs
    processes: Processes
    reporter: Reporter
    stop: StopSignal
    start: Start
    checkpoints: CheckpointStore
    actors: dict[str, ActorHandle]
    """Filled with every actor of the run by name, for the watchdog."""
    supervisor: EngineSupervisor = field(init=False)
    followed: Followed = field(init=False)
    audit: GradingAudit = field(init=False)
    tracer: Tracer = field(init=False)
    progress: Progress = field(init=False)

    def __post_init__(self) -> None:
        processes = self.processes
        self.progress = self.start.progress
        self.followed = Followed(
            processes.homes,
            services=processes.services,
            ranks=processes.ranks,
            bundles=processes.rank_bundles,
            tell=self.reporter.message,
            avoid=lambda names: processes.runner.avoid(environment_indices(names)),
        )
        self.supervisor = EngineSupervisor(
            processes.engines,
            self.config.generation,
            homes=processes.homes,
            tell=self.reporter.message,
            moved=self.progress.moved,
        )
        self.audit = GradingAudit([actor.counts.remote for actor in processes.graders])
        self.tracer = Tracer(
            self.config.run_dir,
            self.config.reporting.trace_steps,
            lambda: processes.actors,
            self.reporter.message,
        )
        self.progress.give_up = self.processes.learner.give_up

    async def to_the_end(self, resumed: Checkpoint | None) -> bool:
        """Train from `resumed` on; restart the learner from the last checkpoint when a rank dies.

        The watchdog makes a learner that hangs look like one that died. Engines and environments
        stay as they are. Returns False if a signal ended the run early.
        """
        died: LearnerDied | None = None
        for left in range(self.config.learner.restarts, -1, -1):
            try:
                if died is not None:
                    resumed = await asyncio.to_thread(self.checkpoints.latest)
                    await self._restart_learner(died, left, resumed)
                self.actors.update(self.processes.actors)
                return await self._train_from(resumed)
            except (LearnerDied, ExceptionGroup) as error:
                first = cause(error)
                if not isinstance(first, LearnerDied):
                    raise
                died = first
                if self.stop.is_set():
                    break
        raise died or AssertionError("range is never empty")

    async def _restart_learner(
        self, died: LearnerDied, left: int, resumed: Checkpoint | None
    ) -> None:
        step = 0 if resumed is None else resumed.step
        self.reporter.message(
            f"the learner is started again and goes on after step {step} (restarts left: {left}): "
            f"{str(died).split('; give the same command')[0]}"
        )
        self.reporter.rewind(step)
        ranks = self.processes.ranks
        departure = self.followed.departure()
        if departure is not None and departure.movable:
            ranks[:] = reserve_elsewhere(ranks, self.processes.rank_bundles)
        with self.progress.waiting_for("the learner to start again"):
            await self.processes.learner.restart(ranks)

    async def _train_from(self, resumed: Checkpoint | None) -> bool:
        config, inputs, reporter, stop = self.config, self.inputs, self.reporter, self.stop
        start, first_group, finished = 0, 0, {}
        if resumed is not None:
            start, first_group = resumed.step, resumed.next_group(config.batch.problems)
            loading = self.progress.waiting_for("the learner to load its checkpoint")
            with self.start.part("checkpoint", waits=False), loading:
                await self.processes.learner.load(resumed.learner)
            finished = stored_groups(resumed.groups())
            reporter.message(f"resuming after step {start} of {config.steps}")
        with self.start.part("first weight sync") as seconds:
            began = time.monotonic()
            parts, weights = await self._parts()
            seconds["connect"] = time.monotonic() - began
            await weights.publish(start)  # a broken sync fails here, not after the first step
            seconds |= weights.pause
        self.start.up()
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(self.supervisor.watch(weights))
            if start == 0:
                await self._evaluate(parts, 0)
            self.start.ready()
            # What is there now stays to the end, so the garbage collector need not walk over it.
            gc.freeze()
            problems = TaskStream(inputs.train, seed=config.seed, shuffle=config.data.shuffle)
            unmark_finished(config.run_dir)
            step = await run_loop(
                config,
                parts,
                problems,
                inputs.evaluation,
                start=start,
                first_group=first_group,
                finished=finished,
            )
            await self._evaluate(parts, step)
            watching.cancel()
        if stop.is_set():
            reporter.message(f"stopped after step {step}; the same command goes on from there")
            return False
        with self.progress.waiting_for("the export"), naming(config.run_dir / EXPORT):
            await parts.learner.export(config.run_dir / EXPORT)
            await asyncio.to_thread(write_run_card, config, config.run_dir / EXPORT)
        await asyncio.to_thread(mark_finished, config.run_dir, step)
        return True

    async def _evaluate(self, parts: Parts, step: int) -> None:
        evaluation = evaluate_policy(parts.runner, self.inputs.evaluation, self.reporter, step)
        with self.progress.waiting_for(f"the evaluation after step {step}"):
            await unless_stopped(self.stop, evaluation)

    async def _parts(self) -> tuple[Parts, WeightSync]:
        processes = self.processes
        weights = await connect(
            self.config,
            processes.learner,
            processes.engines,
            processes.folder,
            self.inputs.canary,
            self.reporter.message,
        )
        parts = Parts(
            runner=processes.runner,
            learner=processes.learner,
            weights=weights,
            checkpoints=self.checkpoints,
            reporter=self.reporter,
            stop=self.stop,
            progress=self.progress,
            departure=self.followed.departure,
            extra_metrics=partial(self._extra_metrics, weights),
            after_step=self.tracer.after_step,
        )
        return parts, weights

    async def _extra_metrics(self, weights: WeightSync) -> dict[str, float]:
        """Metrics of the sync, of a run whose grading is audited, and of engines that died."""
        metrics = {f"time/paused/{part}": seconds for part, seconds in weights.pause.items()}
        metrics["time/paused"] = sum(weights.pause.values())
        if self.config.grading.audit_share:
            metrics |= await self.audit.metrics()
        if not self.supervisor.restarts:
            return metrics
        return metrics | {
            "engines/alive": float(self.supervisor.alive),
            "engines/restarts": float(self.supervisor.restarts),
            "requests/rerouted": float(await self.processes.runner.rerouted()),
        }


async def _evaluate(
    config: RunConfig, inputs: Inputs, reporter: Reporter, start: Start
) -> list[GroupReport]:
    async with (
        start.telling(),
        evaluation_processes(config, inputs, start) as (runner, homes, services),
        asyncio.TaskGroup() as tasks,
    ):
        start.up()
        followed = Followed(homes, services=services, tell=reporter.message)
        supervisor = EngineSupervisor(
            runner.engines, config.generation, homes=homes, tell=reporter.message
        )
        watching = [
            tasks.create_task(followed.watch()),
            tasks.create_task(supervisor.watch(None)),
        ]
        with start.progress.waiting_for("the evaluation"):
            reports = await evaluate_policy(runner, inputs.evaluation, reporter, 0)
        for task in watching:
            task.cancel()
    return reports
