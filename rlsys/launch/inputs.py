"""What a run works with: model, tokenizer, problems and prompts, fitted to each other."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Final, get_args

from rlsys.config import (
    AnytimeConfig,
    EconomicsDialogue,
    OpenEnvDialogue,
    ReflectionEpisodes,
    RevisionConfig,
    RunConfig,
    ThoughtSection,
)
from rlsys.data.problems import load_problems
from rlsys.environments.dialogue import DIALOGUE_FACTS, evaluation_episodes, training_episodes
from rlsys.environments.sources import remote_environment
from rlsys.environments.wiring import Role
from rlsys.errors import DataError, ModelError
from rlsys.launch.preflight import check_batch, check_shares
from rlsys.tokenization.model_folder import check_model
from rlsys.tokenization.prompts import PromptRenderer, filter_prompts
from rlsys.tokenization.think import ThinkTokens, think_end_id
from rlsys.tokenization.tokenizer import eos_ids, load_tokenizer
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
    reader_length: int | None = None
    """Most tokens that the reflection model reads and writes; None in a run without one."""
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
        case AnytimeConfig() | ReflectionEpisodes() as environment:
            think = ThinkTokens.resolve(tokenizer, environment)
            episode = _tokens_after_prompt(config, environment, think)
            reader_length = None
            if config.revision is not None:
                reader_length = _check_reader(config.revision)
            inputs = _thought_inputs(config, environment, renderer, limit, episode)
            return replace(inputs, reader_length=reader_length)
        case EconomicsDialogue() | OpenEnvDialogue() as environment:
            eos_ids(tokenizer)
            if environment.think_end is not None:
                think_end_id(tokenizer, environment.think_end)
            return _dialogue_inputs(config, environment, renderer, limit)


def _check_reader(revision: RevisionConfig) -> int:
    """Return the longest sequence of the reflection model, once it can be asked in its layout."""
    from rlsys.reflection.detector import check_labels
    from rlsys.reflection.prompts import layout_named

    key, wanted = "environment.revision.reader", revision.reader_generation
    limit = check_model(
        revision.reader,
        on_cpu=not wanted.gpus_per_engine,
        key=key,
        engines="environment.revision.reader_generation",
    )
    tokenizer = load_tokenizer(revision.reader.path, f"{key}.path")
    layout = layout_named(revision.detector.layout)
    PromptRenderer(tokenizer, layout.prompt)
    check_labels(tokenizer, layout)
    eos_ids(tokenizer)
    return limit


def _thought_inputs(
    config: RunConfig,
    environment: ThoughtSection,
    renderer: PromptRenderer,
    limit: int,
    episode: int,
) -> Inputs:
    """`episode` is the most tokens after the prompt."""
    room = limit - episode
    if room < 1:
        raise ModelError(_no_room(config, environment, limit, episode))
    prompt_tokens = min(config.data.prompt.max_tokens, room)
    problems = load_problems(config.data.train)
    held_out = load_problems(config.data.evaluation)[: config.evaluation.problems]
    try:
        train, dropped = filter_prompts(problems, renderer, prompt_tokens)
        evaluation, more = filter_prompts(held_out, renderer, prompt_tokens)
    except DataError as error:
        if room >= config.data.prompt.max_tokens:
            raise
        raise ModelError(f"{_no_room(config, environment, limit, episode)} ({error})") from None
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
    texts, known, summary = _asked(config, environment)
    # As wide as numbers get, so that no turn is longer than the longest of these.
    facts = dict.fromkeys(DIALOGUE_FACTS, float(environment.most_sampled))
    longest = max(len(renderer.render_first(text, facts)) for text in texts)
    if longest + environment.reply_tokens > limit:
        raise ModelError(
            f"a prompt of {longest} tokens and environment.reply_tokens "
            f"{environment.reply_tokens} do not fit into the {limit} tokens that model.path "
            f"{config.model.path!r} may use; lower environment.reply_tokens"
        )
    whole = environment.most_turns * longest + environment.most_sampled
    length = min(limit, whole) if known else limit
    if known and whole > limit:
        summary += f"; one may need {whole:,} tokens, and answers nothing where the context ends"
    return Inputs(
        train=training_episodes(config.seed, config.steps * config.batch.problems),
        evaluation=evaluation_episodes(config.evaluation.problems),
        longest_sequence=length,
        canary=tuple(
            renderer.render_first(text, facts) for text in texts[: config.sync.canary_prompts]
        ),
        summary=f"{summary}; sequences of at most {length:,} tokens",
    )


def _asked(
    config: RunConfig, environment: EconomicsDialogue | OpenEnvDialogue
) -> tuple[list[str], bool, str]:
    """Some of what an environment asks, whether the longest is among it, and a sentence on it."""
    episodes = config.evaluation.problems
    if environment.url is not None:
        urls = dict.fromkeys((environment.url, environment.evaluation_url or environment.url))
        asyncio.run(_check_servers(environment))
        where = f"episodes from {' and '.join(urls)}, {episodes} in an evaluation"
        return list(_PROBES), False, where
    from rlsys.environments.economics.questions import load_corpus

    assert isinstance(environment, EconomicsDialogue)
    corpus, held_out = map(load_corpus, (environment.episode.corpus, environment.evaluation_corpus))
    asked = [
        max((question.text for question in questions), key=len)
        for questions in (*held_out.by_type.values(), *corpus.by_type.values())
    ]
    return (
        asked,
        True,
        (
            f"episodes of {environment.episode.problems} problems from {corpus.source}; evaluated "
            f"on {episodes} from {held_out.source}"
        ),
    )


async def _check_servers(environment: EconomicsDialogue | OpenEnvDialogue) -> None:
    for role in get_args(Role):
        await remote_environment(environment, role).check()


def _largest_budget(config: RunConfig, environment: ThoughtSection) -> int:
    return max(environment.longest_thought, config.evaluation_budgets[-1])


def _tokens_after_prompt(
    config: RunConfig, environment: AnytimeConfig | ReflectionEpisodes, think: ThinkTokens
) -> int:
    """Thought, closing, end of thought, header and one answer at their longest."""
    forced = len(think.closing_ids) + 1 + len(think.header_ids)
    answer = environment.answer_tokens
    if isinstance(environment, ReflectionEpisodes):
        answer = max(answer, environment.revision_tokens)
    return _largest_budget(config, environment) + forced + answer


def _no_room(config: RunConfig, environment: ThoughtSection, limit: int, episode: int) -> str:
    budget = "budget" if isinstance(environment, ReflectionEpisodes) else "budgets"
    return (
        f"budget {_largest_budget(config, environment)}, the closing and an answer take {episode} "
        f"of the {limit} tokens that model.path {config.model.path!r} may use, which leaves "
        f"{max(limit - episode, 0)} for the prompt; lower environment.{budget} and "
        "evaluation.budgets or environment.answer_tokens"
    )
