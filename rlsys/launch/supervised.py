"""`rlsys sft`: the same learner with the loss on response tokens, or on pairs of responses."""

from __future__ import annotations

import time

import ray

from learner.group import LearnerGroup
from learner.spec import LearnerSpec
from rlsys.config import LossConfig, PreferenceFile, SftConfig
from rlsys.launch.learner import RayLearner
from rlsys.launch.session import place, ray_session, run
from rlsys.sft.rows import SupervisedRows, supervised_rows
from rlsys.tokenization.model_folder import resolve_model_path
from rlsys.tokenization.tokenizer import load_tokenizer
from rlsys.training.protocols import Reporter


def sft(config: SftConfig, reporter: Reporter) -> None:
    """Train config.model on supervised rows and write it to run_dir/export."""
    rows = supervised_rows(config, load_tokenizer(config.model.path))
    with ray_session(config):
        run(_sft(config, rows, reporter))


async def _sft(config: SftConfig, rows: SupervisedRows, reporter: Reporter) -> None:
    pairs = isinstance(config.data, PreferenceFile)
    spec = LearnerSpec(
        model_path=str(resolve_model_path(config.model.path)),
        dtype=config.model.dtype,
        seed=config.seed,
        config=config.learner,
        # Every pair counts alike, however long; of single responses every token does.
        loss=LossConfig(aggregation="sequence_mean" if pairs else "token_mean"),
        temperature=1.0,
        objective="rpo" if pairs else "nll",
        rpo=config.rpo,
        total_steps=config.steps,
    )
    placed = await place(config)
    group = await LearnerGroup.start(spec, placed.ranks)
    try:
        await _steps(config, rows, RayLearner(group), reporter)
    finally:
        await group.close()


async def _steps(
    config: SftConfig, rows: SupervisedRows, learner: RayLearner, reporter: Reporter
) -> None:
    for step in range(config.steps):
        started = time.monotonic()
        samples = tuple(rows.samples(step, config.rows_per_step))
        sizes = [(s.num_tokens, s.num_trained) for s in samples]
        metrics = await learner.step_samples([(ray.put(samples), sizes)])
        metrics["time/step"] = time.monotonic() - started
        if (step + 1) % config.log_every == 0 or step + 1 == config.steps:
            reporter.step(step + 1, metrics)
    await learner.export(config.run_dir / "export")
