"""The processes of a run: learner ranks, engines, environment actors and graders."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import ray

from actors.environment import EnvironmentActor, Services
from actors.grading import GradingActor
from actors.pools import GenerationPool, GradingPool
from actors.reflection import ReflectionPool
from learner.group import LearnerGroup
from learner.spec import LearnerSpec
from rlsys.config import LearnerConfig, RunConfig
from rlsys.environments.base import Inputs, ReflectionModel
from rlsys.launch.engines import close_within_limit, engine_pool, reflection_pool
from rlsys.launch.gradient_checkpointing import with_checkpointed_layers
from rlsys.launch.homes import EngineHomes
from rlsys.launch.node_checks import check_nodes
from rlsys.launch.placement import Placement, RayOptions, reserve_placement
from rlsys.launch.resources import reflection_shares_policy_card, transport_of
from rlsys.launch.room import Bundle
from rlsys.launch.runner import RayRunner
from rlsys.launch.start import Start
from rlsys.launch.teacher import with_folder
from rlsys.tokenization.model_folder import resolve_model_path
from rlsys.training.watchdog import Progress
from rlsys.types import Tokens

if TYPE_CHECKING:
    from ray.actor import ActorHandle


ENVIRONMENT: Final = "environment actor "
"""With its index, the name of an environment actor."""
GRADING: Final = "grading actor "
"""With its index, the name of a grading actor."""
SERVICE_RESTARTS: Final = 10
"""How often an environment or grading actor is started again."""
SERVICE_RETRIES: Final = 3
"""How often a group or a comparison whose actor died is started again."""


class Processes(NamedTuple):
    """What a training run started."""

    learner: LearnerGroup
    engines: GenerationPool
    runner: RayRunner
    folder: str
    """Where weights pass from learner to engines."""
    services: dict[str, ActorHandle]
    """Environment and grading actors by name."""
    homes: EngineHomes
    """Where the engines stand."""
    ranks: list[RayOptions]
    """Ray options of the learner's ranks, as they are now."""
    rank_bundles: list[Bundle]
    """What each rank has reserved; empty if the learner cannot move to other nodes."""

    @property
    def graders(self) -> list[ActorHandle]:
        """The grading actors."""
        return [actor for name, actor in self.services.items() if name.startswith(GRADING)]

    @property
    def actors(self) -> dict[str, ActorHandle]:
        """Every actor of the run by name, the ranks of the learner as they are now."""
        ranks = {f"learner rank {i}": actor for i, actor in enumerate(self.learner.actors)}
        engines = {f"engine {i}": engine.actor for i, engine in enumerate(self.engines.engines)}
        return ranks | engines | self.services


def weights_folder(run_dir: Path) -> Path:
    """Where weights pass from learner to engines: in shared memory, where there is some.

    The name follows from the run's, so that what a killed run left is found by the next one.
    """
    shared_memory = Path("/dev/shm")
    parent = shared_memory if shared_memory.is_dir() else Path(tempfile.gettempdir())
    return parent / f"rlsys-{sha256(str(run_dir.resolve()).encode()).hexdigest()[:16]}"


@asynccontextmanager
async def evaluation_processes(
    config: RunConfig, inputs: Inputs, start: Start
) -> AsyncIterator[tuple[RayRunner, EngineHomes, dict[str, ActorHandle]]]:
    """Start what an evaluation needs: engines, environments and graders, but no learner."""
    with start.part("placement", waits=False):
        placement = await reserve_placement(config, start.tell)
    engines, homes = _engines(config, inputs, placement)
    try:
        runner, services = _runner(config, inputs, placement, engines)
        with start.part("node checks"):
            await check_nodes(config, placement)
        await _start(config, start, engines)
        yield runner, homes, services
    finally:
        await close_within_limit(engines.close())


@asynccontextmanager
async def training_processes(
    config: RunConfig,
    inputs: Inputs,
    start: Start | None = None,
) -> AsyncIterator[Processes]:
    """Start all processes at the same time (imports take long); end them whatever happens.

    `start` measures the parts, and its progress hears of every group that is finished.
    """
    start = start or Start(Progress(), lambda line: None)
    moved = start.progress.moved
    with start.part("placement", waits=False):
        placement = await reserve_placement(config, start.tell, moved)
    # Before the nodes are checked: these actors import their modules meanwhile.
    engines, homes = _engines(config, inputs, placement)
    reflection = _reflection_pool(config, inputs, placement.reflection)
    folder = weights_folder(config.run_dir)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    learner: LearnerGroup | None = None
    starting: asyncio.Future[None] | None = None
    runner, services = _runner(config, inputs, placement, engines, reflection, moved)
    try:
        with start.part("node checks"):
            _, settings = await asyncio.gather(
                check_nodes(config, placement),
                with_checkpointed_layers(config, placement, start.tell),
            )
        starting = asyncio.ensure_future(_start(config, start, engines, reflection))
        ranks = _start_learner(config, settings, start, placement.ranks, inputs.canary)
        learner = (await asyncio.gather(ranks, starting))[0]
        yield Processes(
            learner=learner,
            engines=engines,
            runner=runner,
            folder=str(folder),
            services=services,
            homes=homes,
            ranks=placement.ranks,
            rank_bundles=placement.rank_bundles,
        )
    finally:
        runner.close()
        # An actor that still loads takes no call; Ray kills it.
        if starting is not None and starting.done() and not starting.cancelled():
            await close_within_limit(engines.close())
            if reflection is not None:
                await close_within_limit(reflection.close())
        if learner is not None:
            await close_within_limit(learner.close())
        shutil.rmtree(folder, ignore_errors=True)


def _engines(
    config: RunConfig, inputs: Inputs, placement: Placement
) -> tuple[GenerationPool, EngineHomes]:
    pool, start = engine_pool(
        config.model,
        config.generation,
        inputs.longest_sequence,
        config.seed,
        placement.engines,
        canary=inputs.canary,
    )
    return pool, EngineHomes(start, placement.engines, placement.engine_bundles)


def _reflection_pool(
    config: RunConfig, inputs: Inputs, options: list[RayOptions]
) -> ReflectionPool | None:
    revision, length = config.revision, inputs.reflection_length
    if revision is None or length is None:
        return None
    return reflection_pool(revision, length, config.seed, options)


async def _start(
    config: RunConfig,
    start: Start,
    engines: GenerationPool,
    reflection: ReflectionPool | None = None,
) -> None:
    """Load all engines at once; those that share a card measure its memory one after the other."""

    async def load(name: str, pool: GenerationPool | ReflectionPool) -> None:
        with start.part(name) as steps:
            steps.update(await pool.start())

    policy = load("engines", engines)
    if reflection is None:
        await policy
    elif reflection_shares_policy_card(config):
        await policy
        await load("reflection engines", reflection)
    else:
        await asyncio.gather(policy, load("reflection engines", reflection))


async def _start_learner(
    config: RunConfig,
    settings: LearnerConfig,
    start: Start,
    options: Sequence[RayOptions],
    canary: Sequence[Tokens],
) -> LearnerGroup:
    with start.part("learner"):
        learner = await LearnerGroup.start(_learner_spec(config, settings), options)
        # Both take seconds the first time: the forward pass is compiled on a GPU, and vLLM is
        # imported. The engines still load now; in the first weight sync everybody would wait.
        await learner.sequence_logprobs(canary)
        if transport_of(config) == "nccl":
            await learner.import_nccl()
        return learner


def _runner(
    config: RunConfig,
    inputs: Inputs,
    placement: Placement,
    engines: GenerationPool,
    reflection: ReflectionPool | None = None,
    moved: Callable[[], None] = lambda: None,
) -> tuple[RayRunner, dict[str, ActorHandle]]:
    # Ray starts a dead actor again and repeats its calls. A group that is rolled out a second time
    # has the same index and seeds, and so the same episodes.
    again = {"max_restarts": SERVICE_RESTARTS, "max_task_retries": SERVICE_RETRIES}
    first_grader = config.rollout.environment_actors
    grader = ray.remote(GradingActor)
    graders = [
        grader.options(**options, **again).remote(config.grading)
        for options in placement.services[first_grader:]
    ]
    grading = GradingPool(
        graders, max_characters=config.grading.max_characters, policy=config.grading.policy
    )
    environment = ray.remote(EnvironmentActor)
    model = None
    if reflection is not None and inputs.reflection_length is not None:
        model = ReflectionModel(reflection, inputs.reflection_length)
    environments = [
        environment.options(**options, **again).remote(
            config,
            Services(engines.part(index, first_grader), grading, model).packed(),
            inputs.longest_sequence,
        )
        for index, options in enumerate(placement.services[:first_grader])
    ]
    services = {f"{ENVIRONMENT}{i}": actor for i, actor in enumerate(environments)}
    services |= {f"{GRADING}{i}": actor for i, actor in enumerate(graders)}
    return RayRunner(environments, engines, moved), services


def environment_indices(names: Iterable[str]) -> list[int]:
    """Return the indices of the environment actors among the services with these names."""
    return [int(n.removeprefix(ENVIRONMENT)) for n in names if n.startswith(ENVIRONMENT)]


def _learner_spec(config: RunConfig, settings: LearnerConfig) -> LearnerSpec:
    return LearnerSpec(
        model_path=str(resolve_model_path(config.model.path)),
        dtype=config.model.dtype,
        seed=config.seed,
        config=settings,
        loss=config.resolved_loss,
        temperature=config.generation.temperature,
        objective="policy",
        total_steps=config.steps * config.batch.optimizer_steps,
        distillation=with_folder(config.distillation),
        optimizer_steps=config.batch.optimizer_steps,
    )
