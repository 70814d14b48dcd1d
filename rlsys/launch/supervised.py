"""`rlsys sft`: the same learner with the loss on response tokens, or on pairs of responses."""

from __future__ import annotations

import asyncio
import time

from learner.group import LearnerGroup, StoredSamples
from learner.spec import LearnerSpec
from rlsys.config import LossConfig, PreferenceFile, SftConfig
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
    def stored(step: int) -> StoredSamples:
        return StoredSamples.put(rows.samples(step, config.rows_per_step))

    following = asyncio.create_task(asyncio.to_thread(stored, 0))
    for step in range(config.steps):
        started = time.monotonic()
        samples = await following
        # The next rows are made while the ranks train: written searches take as long as a step.
        if step + 1 < config.steps:
            following = asyncio.create_task(asyncio.to_thread(stored, step + 1))
        metrics = await learner.step([samples])
        metrics["time/step"] = time.monotonic() - started
        if (step + 1) % config.log_every == 0 or step + 1 == config.steps:
            reporter.step(step + 1, metrics)
    with naming(config.run_dir / EXPORT):
        await learner.export(config.run_dir / EXPORT)
