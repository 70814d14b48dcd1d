"""What a run works with: model, tokenizer, problems and prompts, fitted to each other."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final, get_args

from rlsys.config import AnytimeConfig, EconomicsDialogue, OpenEnvDialogue, RunConfig
from rlsys.data.problems import load_problems
from rlsys.data.prompts import (
    PromptRenderer,
    ThinkTokens,
    eos_ids,
    filter_prompts,
    load_tokenizer,
    think_end_id,
)
from rlsys.environments.dialogue import evaluation_episodes, training_episodes
from rlsys.environments.sources import Role, remote_environment
from rlsys.errors import DataError, ModelError
from rlsys.orchestration.preflight import check_batch, check_model, check_shares
from rlsys.types import Problem, Tokens

_PROBES: Final = ("What is 3+8-2?", "Say what you see.", "Which is larger, 7 or 12?", "Go on.")
"""Texts for the canary where the environment is not at hand."""


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
        case EconomicsDialogue() | OpenEnvDialogue() as environment:
            eos_ids(tokenizer)
            if environment.think_end is not None:
                think_end_id(tokenizer, environment.think_end)
            return _dialogue_inputs(config, environment, renderer, limit)


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


def _dialogue_inputs(
    config: RunConfig,
    environment: EconomicsDialogue | OpenEnvDialogue,
    renderer: PromptRenderer,
    limit: int,
) -> Inputs:
    texts, summary = _asked(config, environment)
    canary = tuple(renderer.render_first(text, {}) for text in texts[: config.sync.canary_prompts])
    longest = max(map(len, canary))
    if longest + environment.reply_tokens > limit:
        raise ModelError(
            f"a prompt of {longest} tokens and environment.reply_tokens "
            f"{environment.reply_tokens} do not fit into the {limit} tokens that model.path "
            f"{config.model.path!r} may use; lower environment.reply_tokens"
        )
    return Inputs(
        train=training_episodes(config.seed, config.steps * config.batch.problems),
        evaluation=evaluation_episodes(config.evaluation.problems),
        longest_sequence=limit,
        canary=canary,
        summary=f"{summary}; sequences of at most {limit:,} tokens",
    )


def _asked(
    config: RunConfig, environment: EconomicsDialogue | OpenEnvDialogue
) -> tuple[list[str], str]:
    """Some of what an environment asks, and a sentence on where episodes come from."""
    episodes = config.evaluation.problems
    if environment.url is not None:
        urls = dict.fromkeys((environment.url, environment.evaluation_url or environment.url))
        asyncio.run(_check_servers(environment))
        return list(_PROBES), f"episodes from {' and '.join(urls)}, {episodes} in an evaluation"
    from rlsys.environments.economics.questions import load_corpus

    assert isinstance(environment, EconomicsDialogue)
    corpus, held_out = map(load_corpus, (environment.episode.corpus, environment.evaluation_corpus))
    return [questions[0].text for questions in held_out.by_type.values()], (
        f"episodes of {environment.episode.problems} problems from {corpus.source}; evaluated on "
        f"{episodes} from {held_out.source}"
    )


async def _check_servers(environment: EconomicsDialogue | OpenEnvDialogue) -> None:
    for role in get_args(Role):
        await remote_environment(environment, role).check()


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
