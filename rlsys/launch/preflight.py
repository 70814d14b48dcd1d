"""Checks before Ray starts. Data and prompts are checked in rlsys.launch.inputs.

batch_table     shows how a training step is divided
check_resources compares the needed GPUs and cores with a cluster (rlsys.launch.resources)
"""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from rlsys.config import (
    RunConfig,
)
from rlsys.errors import ConfigError
from rlsys.launch.resources import check_local_gpus, check_resources, check_shares

__all__ = [
    "batch_table",
    "check_batch",
    "check_local_gpus",
    "check_resources",
    "check_shares",
]


def check_batch(config: RunConfig) -> None:
    """Raise ConfigError if an optimizer step has fewer episodes than there are ranks."""
    batch, ranks = config.batch, config.learner.ranks
    episodes = batch.episodes // batch.optimizer_steps
    if episodes < ranks:
        raise ConfigError(
            f"learner.ranks {ranks} is more than the {episodes} episodes of an optimizer step "
            f"({batch.problems} problems x {batch.group_size} / {batch.optimizer_steps} steps), so "
            "some ranks would be idle; raise batch.problems or lower learner.ranks"
        )


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
