"""Checks before Ray starts. Data and prompts are checked in rlsys.launch.inputs.

batch_table         shows how a training step is divided
check_resources     compares the needed GPUs and cores with a cluster (rlsys.launch.resources)
check_shared_memory compares the weights with /dev/shm, where they pass on the CPU
run_warnings        what is no error and yet worth a line
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from rich.table import Table
from rich.text import Text

from rlsys.config import (
    RunConfig,
)
from rlsys.errors import ConfigError, ModelError, ResourceError
from rlsys.launch.machine import busy_cards, unwritable_cache
from rlsys.launch.resources import (
    bundles,
    check_local_gpus,
    check_resources,
    check_shares,
    starts_local_ray,
    transport_of,
)

__all__ = [
    "batch_table",
    "check_batch",
    "check_local_gpus",
    "check_resources",
    "check_shared_memory",
    "check_shares",
    "run_warnings",
]

MIB = 1 << 20


def check_batch(config: RunConfig) -> None:
    """Raise ConfigError if an optimizer step has fewer episodes than ranks need."""
    batch, learner = config.batch, config.learner
    episodes = batch.episodes // batch.optimizer_steps
    if episodes < learner.data_parallel:
        shared = "" if learner.sequence_ranks == 1 else " / learner.sequence_ranks"
        raise ConfigError(
            f"learner.ranks{shared} {learner.data_parallel} is more than the {episodes} episodes "
            "of an optimizer step "
            f"({batch.problems} problems x {batch.group_size} / {batch.optimizer_steps} steps), so "
            "some ranks would be idle; raise batch.problems or lower learner.ranks"
        )


def check_shared_memory(config: RunConfig, folder: Path = Path("/dev/shm")) -> None:
    """Raise ResourceError if the weights that go through `folder` are larger than its free space.

    A container has 64 MiB there unless it is asked for more. The limit of a cluster's nodes is
    examined by `rlsys doctor --cluster`.
    """
    if not starts_local_ray() or transport_of(config) != "shm" or not folder.is_dir():
        return
    from rlsys.planning.shape import read_shape

    itemsize = 2 if config.model.dtype == "bfloat16" else 4
    try:
        weights = read_shape(config.model.path).parameters * itemsize
    except ModelError:
        return  # a family whose parameters cannot be counted trains all the same
    # A new file of each part stands beside the old one until it is complete.
    needed = weights + min(config.sync.bucket_mib * MIB, weights)
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise ResourceError(
            f"the weights of {config.model.path} pass from learner to engines through {folder} and "
            f"need {needed / MIB:,.0f} MiB there, of which {free / MIB:,.0f} are free; start the "
            "container with --shm-size=8g, or set sync.transport=object_store"
        )


def run_warnings(config: RunConfig) -> Iterator[str]:
    """Yield a sentence for each thing that may be meant, but rarely is."""
    if warning := config.environment.evaluation_warning:
        yield warning
    on_gpus = any(bundle.gpus for bundle in bundles(config))
    if on_gpus and starts_local_ray():
        yield from filter(None, (busy_cards(), unwritable_cache()))


def batch_table(config: RunConfig) -> Table:
    """Return a table of the sizes of a training step: problems, episodes, scores and tokens."""
    batch = config.batch
    environment = config.environment
    tokens = batch.episodes * environment.longest_episode
    # A Text, because a string would be read as rich's markup: the name may hold brackets.
    table = Table(title=Text(f"A training step of {config.name!r}"), show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    scores = batch.episodes * environment.scores_per_episode
    origin_of_scores, origin_of_tokens = environment.size_origins
    rows = [
        ("problems", batch.problems, "batch.problems"),
        ("episodes", batch.episodes, f"x {batch.group_size} group_size"),
        ("scores", scores, origin_of_scores),
        ("sampled tokens, at most", tokens, origin_of_tokens),
        (
            "episodes per optimizer step",
            batch.episodes // batch.optimizer_steps,
            f"/ {batch.optimizer_steps} optimizer_steps",
        ),
        (
            "tokens per learner rank, at most",
            -(-tokens // config.learner.ranks),
            f"/ {config.learner.ranks} ranks, balanced by tokens",
        ),
    ]
    for name, count, origin in rows:
        table.add_row(name, f"{count:,}", origin)
    return table
