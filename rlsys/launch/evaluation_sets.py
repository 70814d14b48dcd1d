"""`rlsys eval sets`: start what runs the model, sample what is missing, write the summary."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from rlsys.config.evaluation_sets import SetsConfig
from rlsys.config.loading import dump_config
from rlsys.evaluation.endpoint import endpoint_generator
from rlsys.evaluation.grader import local_grader
from rlsys.evaluation.preparation import Prepared, prepare
from rlsys.evaluation.records import RESULTS, SUMMARY, claim, read_results
from rlsys.evaluation.sampling import Unit, all_units, check_unchanged, sample_units
from rlsys.evaluation.summary import results_by_set, summarise
from rlsys.launch.local_model import LocalModel
from rlsys.launch.session import run
from rlsys.reflection.labelling.journal import Journal
from rlsys.training.durable import replace_file
from rlsys.types import Generator

Tell = Callable[[str], None]


def evaluate_sets(config: SetsConfig, tell: Tell) -> list[dict[str, Any]]:
    """Sample every thought that `config.run_dir` lacks, and return the rows of the summary.

    Nothing is started if no thought is missing. The caller holds the lock of `config.run_dir`.

    Raises:
        UserError: the input is wrong, or `config.run_dir` holds results of other settings.
        EngineError: the engines or the endpoint failed; the same command goes on.
    """
    baseline = None
    if config.baseline is not None:
        baseline = results_by_set(read_results(config.baseline))
    prepared = prepare(config)
    for note in prepared.notes:
        tell(note)
    claim(config, dump_config(config))
    journal = Journal(config.run_dir / RESULTS)
    units = all_units(config, prepared.problems)
    if len(journal):
        check_unchanged(read_results(config.run_dir), units, prepared.weights, config.run_dir)
    if any(unit.id not in journal for unit in units):
        run(_sample(prepared, units, journal, tell))
    # In the order of the configuration, whatever the order in which thoughts ended.
    rows = {row.id: row for row in read_results(config.run_dir)}
    summary = summarise(results_by_set([rows[unit.id] for unit in units]), baseline)
    replace_file(config.run_dir / SUMMARY, json.dumps(summary, indent=1) + "\n")
    return summary


async def _sample(prepared: Prepared, units: list[Unit], journal: Journal, tell: Tell) -> None:
    config = prepared.config
    async with _generator(prepared, units[0]) as (generator, concurrency):
        environment = prepared.environment(generator, local_grader(config.grading))
        await sample_units(
            environment,
            units,
            journal,
            weights=prepared.weights,
            concurrency=concurrency,
            tell=tell,
        )


@asynccontextmanager
async def _generator(prepared: Prepared, first: Unit) -> AsyncIterator[tuple[Generator, int]]:
    """Yield what samples, and how many thoughts to sample at once."""
    config = prepared.config
    if config.endpoint is not None:
        prompt = prepared.renderer.render(first.problem).tolist()
        async with endpoint_generator(config.endpoint, prompt) as generator:
            yield generator, config.endpoint.concurrency
    else:
        async with LocalModel(config, prepared.longest_sequence) as model:
            # Twice as many as fit: while answers are graded, others are sampled.
            yield model, 2 * config.generation.engines * config.generation.max_sequences
