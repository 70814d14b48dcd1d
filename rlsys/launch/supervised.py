"""`rlsys sft`: the same learner with the loss on response tokens, or on pairs of responses."""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.row_maker import RowMaker
from learner.group import LearnerGroup, StoredSamples
from learner.spec import LearnerSpec
from rlsys.config import LossConfig, PreferenceFile, SftConfig, SupervisedFile
from rlsys.launch.gradient_checkpointing import with_checkpointed_layers
from rlsys.launch.node_checks import check_nodes
from rlsys.launch.placement import reserve_placement
from rlsys.launch.session import ray_session, run
from rlsys.sft.rows import SupervisedRows, supervised_rows
from rlsys.tokenization.model_folder import resolve_model_path
from rlsys.tokenization.tokenizer import load_tokenizer
from rlsys.training.durable import naming
from rlsys.training.protocols import Reporter
from rlsys.training.run_folder import EXPORT

MOST_MAKERS: Final = 8
"""Processes that make rows. One makes 500 to 800 searches a second."""


def load_rows(config: SftConfig) -> SupervisedRows:
    """Return the rows of a run. Raises DataError or ModelError."""
    return supervised_rows(config, load_tokenizer(config.model.path))


def sft(config: SftConfig, rows: SupervisedRows, reporter: Reporter) -> None:
    """Train config.model on supervised rows for config.steps, and write it to run_dir/export."""
    with ray_session(config):
        run(_sft(config, rows, reporter))


async def _sft(config: SftConfig, rows: SupervisedRows, reporter: Reporter) -> None:
    pairs = isinstance(config.data, PreferenceFile)
    placement = await reserve_placement(config, reporter.message)
    await check_nodes(config, placement)
    spec = LearnerSpec(
        model_path=str(resolve_model_path(config.model.path)),
        dtype=config.model.dtype,
        seed=config.seed,
        config=await with_checkpointed_layers(config, placement, reporter.message),
        # Each pair has the same weight, whatever its length; of single responses, each token has.
        loss=LossConfig(aggregation="sequence_mean" if pairs else "token_mean"),
        temperature=1.0,
        objective="rpo" if pairs else "nll",
        rpo=config.rpo,
        total_steps=config.steps,
    )
    learner = await LearnerGroup.start(spec, placement.ranks)
    try:
        await _steps(config, rows, learner, reporter)
    finally:
        await learner.close()


async def _steps(
    config: SftConfig, rows: SupervisedRows, learner: LearnerGroup, reporter: Reporter
) -> None:
    makers = _makers(config)
    count = config.rows_per_step
    source = _made_by(makers, rows, count) if makers else _made_here(rows, count)
    following: deque[asyncio.Task[StoredSamples]] = deque()
    for step in range(config.steps):
        started = time.monotonic()
        # The next rows are made while the ranks train.
        last = min(step + source.ahead, config.steps - 1)
        for later in range(step + len(following), last + 1):
            following.append(asyncio.create_task(source.make(later)))
        samples = await following.popleft()
        metrics = await learner.step([samples])
        metrics["time/step"] = time.monotonic() - started
        if (step + 1) % config.log_every == 0 or step + 1 == config.steps:
            reporter.step(step + 1, metrics)
    with naming(config.run_dir / EXPORT):
        await learner.export(config.run_dir / EXPORT)


class RowSource(NamedTuple):
    """What makes the rows of a step, and how many steps ahead of the learner."""

    make: Callable[[int], Coroutine[Any, Any, StoredSamples]]
    ahead: int


def _makers(config: SftConfig) -> int:
    """Return how many processes make rows; 0 for a thread of this one.

    Rows of files are there already. On CPUs the training takes longer than its rows, and needs the
    cores.
    """
    if isinstance(config.data, SupervisedFile | PreferenceFile) or not config.learner.gpus_per_rank:
        return 0
    return min(MOST_MAKERS, max(1, (os.cpu_count() or 1) // 2))


def _made_here(rows: SupervisedRows, count: int) -> RowSource:
    def stored(step: int) -> StoredSamples:
        return StoredSamples.put(rows.samples(step, count))

    async def make(step: int) -> StoredSamples:
        return await asyncio.get_running_loop().run_in_executor(thread, stored, step)

    thread = ThreadPoolExecutor(1)  # one, because a tokenizer must not be called by two at once
    return RowSource(make, 1)


def _made_by(makers: int, rows: SupervisedRows, count: int) -> RowSource:
    # On this node: the number of makers was chosen by its cores.
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    actor = ray.remote(num_cpus=0, scheduling_strategy=here)(RowMaker)
    actors = [actor.remote(rows, count) for _ in range(makers)]

    async def make(step: int) -> StoredSamples:
        samples, sizes = actors[step % makers].make.options(num_returns=2).remote(step)
        return StoredSamples(samples, await sizes)

    return RowSource(make, 2 * makers)
