"""Everything that can be known to be wrong before Ray starts, and what a run has to work with.

batch_table     how a training step divides, for the eye
check_inputs    model, tokenizer, data and prompts, loaded and fitted to each other
check_resources the cards and cores of a cluster (rlsys.orchestration.resources)
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.table import Table

from rlsys.config import AnytimeConfig, EconomicsDialogue, ModelConfig, RunConfig
from rlsys.data.problems import load_problems
from rlsys.data.prompts import (
    PromptRenderer,
    ThinkTokens,
    eos_ids,
    filter_prompts,
    load_tokenizer,
    resolve_model_path,
    think_end_id,
)
from rlsys.environments.dialogue import evaluation_episodes, training_episodes
from rlsys.errors import ConfigError, DataError, ModelError
from rlsys.orchestration.resources import check_local_gpus, check_resources, check_shares
from rlsys.types import Problem, Tokens

if TYPE_CHECKING:
    from transformers import PretrainedConfig

__all__ = [
    "Inputs",
    "batch_table",
    "check_batch",
    "check_inputs",
    "check_local_gpus",
    "check_model",
    "check_resources",
    "check_shares",
]

CPU_HEAD_SIZES: Final = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Attention head sizes that the CPU build of vLLM has kernels for."""

_MODEL_FILES: Final = {
    "settings": ("config.json",),
    "weights": ("*.safetensors", "pytorch_model*.bin"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What a run works with, checked."""

    train: list[Problem]
    """Training problems whose prompt fits, or the seeds of dialogues."""
    evaluation: list[Problem]
    """The held-out problems of the evaluation, or their seeds."""
    longest_sequence: int
    """Most tokens of a whole sequence: prompt, everything sampled, forced or observed."""
    canary: tuple[Tokens, ...]
    """Prompts on which engine and learner are compared after every sync."""
    summary: str
    """One sentence for the user."""


def check_inputs(config: RunConfig) -> Inputs:
    """Load model settings, tokenizer and problems and fit them to each other.

    Raises:
        ModelError: no such model, a tokenizer without the needed tokens, or sequences longer than
            the model takes.
        DataError: problems are missing, empty or malformed, or every prompt is too long.
    """
    check_shares(config)
    check_batch(config)
    limit = check_model(config.model, on_cpu=not config.generation.gpus_per_engine)
    tokenizer = load_tokenizer(config.model.path)
    renderer = PromptRenderer(tokenizer, config.data.prompt)
    match config.environment:
        case AnytimeConfig() as environment:
            think = ThinkTokens.resolve(tokenizer, environment)
            return _anytime_inputs(config, renderer, limit, _tokens_after_prompt(config, think))
        case EconomicsDialogue() as environment:
            eos_ids(tokenizer)
            if environment.think_end is not None:
                think_end_id(tokenizer, environment.think_end)
            return _economics_inputs(config, environment, renderer, limit)


def _anytime_inputs(
    config: RunConfig, renderer: PromptRenderer, limit: int, episode: int
) -> Inputs:
    """`episode` is the most tokens after the prompt."""
    room = limit - episode
    if room < 1:
        raise ModelError(_no_room(config, limit, episode))
    prompt_tokens = min(config.data.prompt.max_tokens, room)
    problems = load_problems(config.data.train)
    held_out = load_problems(config.data.evaluation)[: config.evaluation.problems]
    try:
        train, dropped = filter_prompts(problems, renderer, prompt_tokens)
        evaluation, more = filter_prompts(held_out, renderer, prompt_tokens)
    except DataError as error:
        if room >= config.data.prompt.max_tokens:
            raise
        raise ModelError(f"{_no_room(config, limit, episode)} ({error})") from None
    dropped += more
    note = f", {dropped:,} dropped for a prompt that is too long" * bool(dropped)
    return Inputs(
        train=train,
        evaluation=evaluation,
        longest_sequence=prompt_tokens + episode,
        canary=tuple(renderer.render(p) for p in evaluation[: config.sync.canary_prompts]),
        summary=(
            f"{len(train):,} training and {len(evaluation):,} held-out problems{note}; sequences "
            f"of at most {prompt_tokens + episode:,} tokens"
        ),
    )


def _economics_inputs(
    config: RunConfig, environment: EconomicsDialogue, renderer: PromptRenderer, limit: int
) -> Inputs:
    from rlsys.environments.economics.questions import load_corpus

    corpus, held_out = map(load_corpus, (environment.episode.corpus, environment.evaluation_corpus))
    first = [questions[0].text for questions in held_out.by_type.values()]
    canary = tuple(renderer.render_first(text, {}) for text in first[: config.sync.canary_prompts])
    longest = max(map(len, canary))
    if longest + environment.reply_tokens > limit:
        raise ModelError(
            f"a question of {longest} tokens and environment.reply_tokens "
            f"{environment.reply_tokens} do not fit into the {limit} tokens that model.path "
            f"{config.model.path!r} may use; lower environment.reply_tokens"
        )
    return Inputs(
        train=training_episodes(config.seed, config.steps * config.batch.problems),
        evaluation=evaluation_episodes(config.evaluation.problems),
        longest_sequence=limit,
        canary=canary,
        summary=(
            f"episodes of {environment.episode.problems} problems from {corpus.source}; evaluated "
            f"on {config.evaluation.problems} from {held_out.source}; sequences of at most "
            f"{limit:,} tokens"
        ),
    )


def check_model(model: ModelConfig, *, on_cpu: bool) -> int:
    """Return the longest sequence in tokens that the model may be used with.

    `on_cpu` says that the CPU build of vLLM will run it.

    Raises ModelError if the folder lacks its files, if max_length is beyond the model's own limit,
    or if the CPU build has no attention for its head size.
    """
    folder = resolve_model_path(model.path)
    settings = _model_settings(model.path, folder)
    own: int | None = getattr(settings, "max_position_embeddings", None)
    if model.max_length is not None and own is not None and model.max_length > own:
        raise ModelError(
            f"model.max_length {model.max_length} is beyond the {own} positions of model.path "
            f"{model.path!r}; lower it"
        )
    limit = model.max_length or own
    if limit is None:
        raise ModelError(
            f"model.path {model.path!r} does not say how long its sequences may be; "
            "set model.max_length"
        )
    heads = getattr(settings, "num_attention_heads", None)
    if on_cpu and heads is not None:
        size = getattr(settings, "head_dim", None) or settings.hidden_size // heads
        if size not in CPU_HEAD_SIZES:
            raise ModelError(
                f"model.path {model.path!r} has attention heads of size {size}, but engines on the "
                f"CPU take {', '.join(map(str, CPU_HEAD_SIZES))}; set generation.gpus_per_engine "
                "or use another model"
            )
    return limit


def _model_settings(path: str, folder: str) -> PretrainedConfig:
    from transformers import AutoConfig

    local = Path(folder)
    if local.is_dir():
        for what, patterns in _MODEL_FILES.items():
            if not any(found for pattern in patterns for found in local.glob(pattern)):
                raise ModelError(
                    f"model folder {path!r} has no {what} ({' or '.join(patterns)}); set "
                    "model.path to a whole Hugging Face folder"
                )
    try:
        settings = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except (OSError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ModelError(
            f"model.path {path!r} is neither a folder nor a hub name that can be loaded "
            f"({reason}); correct it, or download the model and give its folder"
        ) from error
    return settings.get_text_config()


def _largest_budget(config: RunConfig) -> int:
    return max(config.anytime.budgets[-1], config.evaluation_budgets[-1])


def _tokens_after_prompt(config: RunConfig, think: ThinkTokens) -> int:
    """Thought, closing, end of thought, header and one answer at their longest."""
    forced = len(think.closing_ids) + 1 + len(think.header_ids)
    return _largest_budget(config) + forced + config.anytime.answer_tokens


def _no_room(config: RunConfig, limit: int, episode: int) -> str:
    return (
        f"budget {_largest_budget(config)}, the closing and an answer take {episode} of the "
        f"{limit} tokens that model.path {config.model.path!r} may use, which leaves "
        f"{max(limit - episode, 0)} for the prompt; lower environment.budgets and "
        "evaluation.budgets or environment.answer_tokens"
    )


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
        case EconomicsDialogue():
            problems = env.episode.problems
            return (
                episodes * problems,
                f"x {problems} problems per episode, at most",
                f"{env.most_sampled} per episode: its budget, or {problems} x {env.reply_tokens}",
            )
