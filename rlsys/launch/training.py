"""`rlsys train` and `rlsys eval`: start the processes, run the loop, take everything down."""

from __future__ import annotations

import asyncio
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import ray

from actors.environment import EnvironmentActor
from actors.grading import GradingActor
from actors.pools import GenerationPool, GradingPool
from actors.reflection import ReflectionPool
from learner.group import LearnerGroup
from learner.spec import LearnerSpec
from rlsys.config import RunConfig
from rlsys.data.problems import TaskStream
from rlsys.environments.base import Inputs, ReflectionModel
from rlsys.errors import RlsysError
from rlsys.grading.compare import self_test
from rlsys.launch.engines import close_within_limit, engine_pool, reflection_pool
from rlsys.launch.inputs import check_inputs
from rlsys.launch.resources import SERVICE_CPUS, reflection_shares_policy_card
from rlsys.launch.runner import ObjectStoreFiles, RayRunner
from rlsys.launch.session import RayOptions, ray_session, reserve_placement, run
from rlsys.launch.weights import connect
from rlsys.tokenization.model_folder import resolve_model_path
from rlsys.training.checkpoints import CheckpointStore
from rlsys.training.evaluation import evaluate as run_evaluation
from rlsys.training.evaluation import loss_warning
from rlsys.training.loop import Parts, StopSignal, unless_stopped
from rlsys.training.loop import train as run_loop
from rlsys.training.protocols import Reporter
from rlsys.training.run_folder import CHECKPOINTS
from rlsys.types import GroupReport


class _Processes(NamedTuple):
    """What a training run started."""

    learner: LearnerGroup
    engines: GenerationPool
    runner: RayRunner
    folder: str
    """Where weights pass from learner to engines."""


def train(config: RunConfig, reporter: Reporter) -> bool:
    """Train to config.steps, resuming what the run directory holds.

    Returns:
        False if SIGTERM or Ctrl-C ended the run early; what was finished is in its checkpoint.
    """
    inputs = _checked(config, reporter)
    with ray_session(config):
        return run(_train(config, inputs, reporter))


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


async def _train(config: RunConfig, inputs: Inputs, reporter: Reporter) -> bool:
    stop = StopSignal()
    for sign in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(sign, stop.set)
    files = ObjectStoreFiles()
    checkpoints = CheckpointStore(config.run_dir / CHECKPOINTS, config.checkpoint.keep, files)
    resumed = checkpoints.latest()
    async with AsyncExitStack() as stack:
        starting = stack.enter_async_context(_processes(config, inputs))
        processes = await unless_stopped(stop, starting)
        if processes is None:
            reporter.message("stopped while the processes started; the same command starts again")
            return False
        start, finished = 0, {}
        if resumed is not None:
            start, checkpoint = resumed
            await processes.learner.load(checkpoint / "learner")
            finished = checkpoints.read_groups(checkpoint)
            reporter.message(f"resuming after step {start} of {config.steps}")
        parts = await _parts(config, inputs, processes, checkpoints, reporter, stop)
        await parts.weights.publish(start)  # a broken sync fails here, not after the first step
        if start == 0:
            first = run_evaluation(parts.runner, inputs.evaluation, reporter, 0)
            await unless_stopped(stop, first)
        problems = TaskStream(inputs.train, seed=config.seed, shuffle=config.data.shuffle)
        step = await run_loop(
            config, parts, problems, inputs.evaluation, start=start, finished=finished
        )
        last = run_evaluation(parts.runner, inputs.evaluation, reporter, step)
        await unless_stopped(stop, last)
        if stop.is_set():
            reporter.message(f"stopped after step {step}; the same command goes on from there")
            return False
        await parts.learner.export(config.run_dir / "export")
    return True


async def _parts(
    config: RunConfig,
    inputs: Inputs,
    processes: _Processes,
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
    engines = _engine_pool(config, inputs, (await reserve_placement(config)).engines)
    try:
        runner = _runner(config, inputs, engines)
        await engines.start()
        return await run_evaluation(runner, inputs.evaluation, reporter, 0)
    finally:
        await close_within_limit(engines.close())


def weights_folder(run_dir: Path) -> Path:
    """Where weights pass from learner to engines: in shared memory, where there is some.

    The name follows from the run's, so that what a killed run left is found by the next one.
    """
    shared_memory = Path("/dev/shm")
    parent = shared_memory if shared_memory.is_dir() else Path(tempfile.gettempdir())
    return parent / f"rlsys-{sha256(str(run_dir.resolve()).encode()).hexdigest()[:16]}"


@asynccontextmanager
async def _processes(config: RunConfig, inputs: Inputs) -> AsyncIterator[_Processes]:
    """Start all at the same time (they import for long), end them whatever happens."""
    placement = await reserve_placement(config)
    engines = _engine_pool(config, inputs, placement.engines)
    reflection = _reflection_pool(config, inputs, placement.reflection)
    folder = weights_folder(config.run_dir)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    learner: LearnerGroup | None = None
    runner = _runner(config, inputs, engines, reflection)
    starting = asyncio.ensure_future(_start(config, engines, reflection))
    try:
        learner = await LearnerGroup.start(_learner_spec(config), placement.ranks)
        await starting
        yield _Processes(learner, engines, runner, str(folder))
    finally:
        runner.close()
        if starting.done():  # an actor that still loads takes no call; Ray kills it
            await close_within_limit(engines.close())
            if reflection is not None:
                await close_within_limit(reflection.close())
        if learner is not None:
            await close_within_limit(learner.close())
        shutil.rmtree(folder, ignore_errors=True)


def _engine_pool(config: RunConfig, inputs: Inputs, options: list[RayOptions]) -> GenerationPool:
    return engine_pool(
        config.model, config.generation, inputs.longest_sequence, config.seed, options
    )


def _reflection_pool(
    config: RunConfig, inputs: Inputs, options: list[RayOptions]
) -> ReflectionPool | None:
    revision, length = config.revision, inputs.reflection_length
    if revision is None or length is None:
        return None
    return reflection_pool(revision, length, config.seed, options)


async def _start(
    config: RunConfig, engines: GenerationPool, reflection: ReflectionPool | None
) -> None:
    """Load all engines at once; those that share a card measure its memory one after the other."""
    if reflection is None:
        await engines.start()
    elif reflection_shares_policy_card(config):
        await engines.start()
        await reflection.start()
    else:
        await asyncio.gather(engines.start(), reflection.start())


def _runner(
    config: RunConfig,
    inputs: Inputs,
    engines: GenerationPool,
    reflection: ReflectionPool | None = None,
) -> RayRunner:
    light = {"num_cpus": SERVICE_CPUS, "runtime_env": {"env_vars": {"OMP_NUM_THREADS": "1"}}}
    grader = ray.remote(GradingActor).options(**light)
    graders = [grader.remote(config.grading) for _ in range(config.grading.actors)]
    grading = GradingPool(graders, max_characters=config.grading.max_characters)
    environment = ray.remote(EnvironmentActor).options(**light)
    model = None
    if reflection is not None and inputs.reflection_length is not None:
        model = ReflectionModel(reflection, inputs.reflection_length)
    environments = [
        environment.remote(config, engines, grading, inputs.longest_sequence, model)
        for _ in range(config.rollout.environment_actors)
    ]
    return RayRunner(environments, engines)


def _learner_spec(config: RunConfig) -> LearnerSpec:
    return LearnerSpec(
        model_path=str(resolve_model_path(config.model.path)),
        dtype=config.model.dtype,
        seed=config.seed,
        config=config.learner,
        loss=config.resolved_loss,
        temperature=config.generation.temperature,
        objective="policy",
        total_steps=config.steps * config.batch.optimizer_steps,
        optimizer_steps=config.batch.optimizer_steps,
    )
