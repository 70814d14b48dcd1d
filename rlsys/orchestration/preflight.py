"""What can be known to be wrong before Ray starts, data and prompts apart (they are in inputs).

batch_table     how a training step divides, for the eye
check_model     the folder of a model, and how long its sequences may be
evaluation_warning  whether evaluations leave the questions of training
check_resources the cards and cores of a cluster (rlsys.orchestration.resources)
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.table import Table

from rlsys.config import (
    AnytimeConfig,
    DialogueSection,
    EconomicsDialogue,
    ModelConfig,
    OpenEnvDialogue,
    RunConfig,
)
from rlsys.config_reflection import ReflectionEpisodes
from rlsys.data.prompts import resolve_model_path
from rlsys.errors import ConfigError, ModelError
from rlsys.orchestration.resources import check_local_gpus, check_resources, check_shares

if TYPE_CHECKING:
    from transformers import PretrainedConfig

__all__ = [
    "batch_table",
    "check_batch",
    "check_local_gpus",
    "check_model",
    "check_resources",
    "check_shares",
    "evaluation_warning",
]

CPU_HEAD_SIZES: Final = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Attention head sizes that the CPU build of vLLM has kernels for."""

_MODEL_FILES: Final = {
    "settings": ("config.json",),
    "weights": ("*.safetensors", "pytorch_model*.bin"),
}


def check_model(
    model: ModelConfig, *, on_cpu: bool, key: str = "model", engines: str = "generation"
) -> int:
    """Return the longest sequence in tokens that the model may be used with.

    `on_cpu` says that the CPU build of vLLM will run it; `key` and `engines` are where it and its
    engines are set.

    Raises ModelError if the folder lacks its files, if max_length is beyond the model's own limit,
    or if the CPU build has no attention for its head size.
    """
    folder = resolve_model_path(model.path, f"{key}.path")
    settings = _model_settings(model.path, folder, key)
    own: int | None = getattr(settings, "max_position_embeddings", None)
    if model.max_length is not None and own is not None and model.max_length > own:
        raise ModelError(
            f"{key}.max_length {model.max_length} is beyond the {own} positions of {key}.path "
            f"{model.path!r}; lower it"
        )
    limit = model.max_length or own
    if limit is None:
        raise ModelError(
            f"{key}.path {model.path!r} does not say how long its sequences may be; "
            f"set {key}.max_length"
        )
    heads = getattr(settings, "num_attention_heads", None)
    if on_cpu and heads is not None:
        size = getattr(settings, "head_dim", None) or settings.hidden_size // heads
        if size not in CPU_HEAD_SIZES:
            raise ModelError(
                f"{key}.path {model.path!r} has attention heads of size {size}, but engines on the "
                f"CPU take {', '.join(map(str, CPU_HEAD_SIZES))}; set {engines}.gpus_per_engine "
                "or use another model"
            )
    return limit


def _model_settings(path: str, folder: str, key: str) -> PretrainedConfig:
    from transformers import AutoConfig

    local = Path(folder)
    if local.is_dir():
        for what, patterns in _MODEL_FILES.items():
            if not any(found for pattern in patterns for found in local.glob(pattern)):
                raise ModelError(
                    f"model folder {path!r} has no {what} ({' or '.join(patterns)}); set "
                    f"{key}.path to a whole Hugging Face folder"
                )
    try:
        settings = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except (OSError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ModelError(
            f"{key}.path {path!r} is neither a folder nor a hub name that can be loaded "
            f"({reason}); correct it, or download the model and give its folder"
        ) from error
    return settings.get_text_config()


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
