"""What can be known to be wrong before Ray starts, data and prompts apart (they are in inputs).

batch_table     how a training step divides, for the eye
evaluation_warning  whether evaluations leave the questions of training
check_resources the cards and cores of a cluster (rlsys.launch.resources)
"""

from __future__ import annotations

from rich.table import Table

from rlsys.config import (
    AnytimeConfig,
    DialogueSection,
    EconomicsDialogue,
    OpenEnvDialogue,
    ReflectionEpisodes,
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
    "evaluation_warning",
]


def check_batch(config: RunConfig) -> None:
    """Raise ConfigError if an optimizer step has fewer episodes than there are ranks."""
    batch, ranks = config.batch, config.learner.ranks
    episodes = batch.episodes // batch.optimizer_steps
    if episodes < ranks:
        raise ConfigError(
            f"learner.ranks {ranks} is more than the {episodes} episodes of an optimizer step "
            f"({batch.problems} problems x {batch.group_size} / {batch.optimizer_steps} steps), so "
            "some rank would idle; raise batch.problems or lower learner.ranks"
        )


def evaluation_warning(config: RunConfig) -> str | None:
    """Return a sentence if training evaluates on the server that it trains on, else None.

    To name that server as the one of the evaluation too says that it is meant so.
    """
    env = config.environment
    if not isinstance(env, EconomicsDialogue | OpenEnvDialogue):
        return None
    if env.url is None or env.evaluation_url is not None:
        return None
    return (
        f"evaluations play on the training server {env.url}, so on questions of training; name a "
        "server of held-out ones as environment.evaluation_url"
    )


def batch_table(config: RunConfig) -> Table:
    """What a training step holds: problems -> episodes -> scores -> tokens."""
    batch = config.batch
    tokens = batch.episodes * config.longest_episode
    table = Table(title=f"A training step of {config.name!r}", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    scores, origin_of_scores, origin_of_tokens = _scores_and_tokens(config)
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


def _scores_and_tokens(config: RunConfig) -> tuple[int, str, str]:
    """Scores of a step, and where they and the sampled tokens of an episode come from."""
    episodes, env = config.batch.episodes, config.environment
    match env:
        case AnytimeConfig():
            return (
                episodes * env.slots,
                f"x {len(env.budgets)} budgets x {env.answers} answers per episode",
                f"{env.budgets[-1]} thought + {env.slots} x {env.answer_tokens} answer per episode",
            )
        case ReflectionEpisodes():
            revised = env.revision is not None
            return (
                episodes * (1 + revised),
                "originals" + " and revisions" * revised,
                f"{env.budget} thought + {env.answer_tokens} answer"
                + f" + {env.revision_tokens} revised answer" * revised
                + " per episode",
            )
        case DialogueSection():
            turns = env.most_turns
            return (
                episodes * turns,
                f"x {turns} replies per episode, at most",
                f"{env.most_sampled} per episode: its budget, or {turns} x {env.reply_tokens}",
            )
