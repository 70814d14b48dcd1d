"""What a run of dialogues works with: seeds, and how long its one growing sequence may get."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlsys.config import DialogueSection
from rlsys.environments.base import InputContext, Inputs
from rlsys.environments.dialogue import evaluation_episodes, training_episodes
from rlsys.errors import ModelError
from rlsys.tokenization.think import think_end_id
from rlsys.tokenization.tokenizer import eos_ids


def dialogue_inputs(
    context: InputContext,
    asked: Sequence[str],
    shown: Mapping[str, float],
    summary: str,
    *,
    complete: bool,
) -> Inputs:
    """Return the seeds of a run and the length of its sequences.

    Args:
        context: the run.
        asked: questions that the environment may ask; the first ones become the canary.
        shown: names that the prompt template may show, with their widest numbers.
        summary: where episodes come from, in words.
        complete: True if the longest question is among `asked`, so that the length of a whole
            episode is known beforehand.

    Raises ModelError if not even one turn fits into the model's sequences.
    """
    config, renderer, limit = context.config, context.renderer, context.limit
    settings = context.settings(DialogueSection)
    eos_ids(context.tokenizer)
    if settings.think_end is not None:
        think_end_id(context.tokenizer, settings.think_end)
    prompts = [renderer.render_first(text, shown) for text in asked]
    longest = max(map(len, prompts))
    if longest + settings.reply_tokens > limit:
        raise ModelError(
            f"a prompt of {longest} tokens and environment.reply_tokens {settings.reply_tokens} do "
            f"not fit into the {limit} tokens that model.path {config.model.path!r} takes; lower "
            "environment.reply_tokens"
        )
    whole = settings.most_turns * longest + settings.longest_episode
    length = min(limit, whole) if complete else limit
    if complete and whole > limit:
        summary += (
            f"; an episode may need {whole:,} tokens, and questions behind the context's end stay "
            "unanswered"
        )
    return Inputs(
        train=training_episodes(config.seed, config.steps * config.batch.problems),
        evaluation=evaluation_episodes(config.evaluation.problems),
        longest_sequence=length,
        canary=tuple(prompts[: config.sync.canary_prompts]),
        summary=f"{summary}; sequences of at most {length:,} tokens",
    )
