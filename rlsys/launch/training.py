"""`rlsys train` and `rlsys eval`: start the processes, run the loop, take everything down."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack

from rlsys.config import RunConfig
from rlsys.data.problems import TaskStream
from rlsys.environments.base import Inputs
from rlsys.errors import RlsysError
from rlsys.grading.compare import self_test
from rlsys.launch.inputs import check_inputs
from rlsys.launch.processes import Processes, evaluation_processes, training_processes
from rlsys.launch.runner import stored_groups
from rlsys.launch.session import ray_session, run
from rlsys.launch.weights import connect
from rlsys.training.checkpoints import Checkpoint, CheckpointStore
from rlsys.training.evaluation import evaluate_policy, loss_warning
from rlsys.training.loop import Parts, StopSignal, unless_stopped
from rlsys.training.loop import train as run_loop
from rlsys.training.protocols import Reporter
from rlsys.training.run_folder import EXPORT, mark_finished, unmark_finished
from rlsys.types import GroupReport


def train(
    config: RunConfig, reporter: Reporter, checkpoints: CheckpointStore, resumed: Checkpoint | None
) -> bool:
    """Train to config.steps, going on from `resumed`, a checkpoint of the run directory.

    Returns:
        False if SIGTERM or Ctrl-C ended the run early; what was finished is in its checkpoint.
    """
    inputs = _checked(config, reporter)
    with ray_session(config):
        return run(_train(config, inputs, reporter, checkpoints, resumed))


def evaluate(config: RunConfig, reporter: Reporter) -> str | None:
    """Report the anytime curve of config.model on the held-out problems.

    Returns:
        A warning if some episodes were lost, else None.

    Raises:
        EpisodeLost: all were, which is reported as well.
    """
    inputs = _checked(config, reporter)
    with ray_session(config):
        reports = run(_evaluate(config, inputs, reporter))
    return loss_warning(reports)


def _checked(config: RunConfig, reporter: Reporter) -> Inputs:
    """What the run works with; refuses to start on a grader that grades known answers wrong."""
    inputs = check_inputs(config)
    reporter.message(inputs.summary)
    wrong = self_test()
    if wrong:
        raise RlsysError(f"the grader fails its self-test: {'; '.join(wrong)}; see rlsys doctor")
    return inputs


async def _train(
    config: RunConfig,
    inputs: Inputs,
    reporter: Reporter,
    checkpoints: CheckpointStore,
    resumed: Checkpoint | None,
) -> bool:
    stop = StopSignal()
    for sign in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(sign, stop.set)
    async with AsyncExitStack() as stack:
        starting = stack.enter_async_context(training_processes(config, inputs))
        processes = await unless_stopped(stop, starting)
        if processes is None:
            reporter.message("stopped while the processes started; the same command starts again")
            return False
        start, finished = 0, {}
        if resumed is not None:
            start = resumed.step
            await processes.learner.load(resumed.learner)
            finished = stored_groups(resumed.groups())
            reporter.message(f"resuming after step {start} of {config.steps}")
        parts = await _parts(config, inputs, processes, checkpoints, reporter, stop)
        await parts.weights.publish(start)  # a broken sync fails here, not after the first step
        if start == 0:
            first = evaluate_policy(parts.runner, inputs.evaluation, reporter, 0)
            await unless_stopped(stop, first)
        problems = TaskStream(inputs.train, seed=config.seed, shuffle=config.data.shuffle)
        unmark_finished(config.run_dir)
        step = await run_loop(
            config, parts, problems, inputs.evaluation, start=start, finished=finished
        )
        last = evaluate_policy(parts.runner, inputs.evaluation, reporter, step)
        await unless_stopped(stop, last)
        if stop.is_set():
            reporter.message(f"stopped after step {step}; the same command goes on from there")
            return False
        await parts.learner.export(config.run_dir / EXPORT)
        await asyncio.to_thread(mark_finished, config.run_dir, step)
    return True


async def _parts(
    config: RunConfig,
    inputs: Inputs,
    processes: Processes,
    checkpoints: CheckpointStore,
    reporter: Reporter,
    stop: StopSignal,
) -> Parts:
    return Parts(
        runner=processes.runner,
        learner=processes.learner,
        weights=await connect(
            config, processes.learner, processes.engines, processes.folder, inputs.canary
        ),
        checkpoints=checkpoints,
        reporter=reporter,
        stop=stop,
    )


async def _evaluate(config: RunConfig, inputs: Inputs, reporter: Reporter) -> list[GroupReport]:
    async with evaluation_processes(config, inputs) as runner:
        return await evaluate_policy(runner, inputs.evaluation, reporter, 0)
