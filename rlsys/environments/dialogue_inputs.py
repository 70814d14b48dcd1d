"""Inputs of a run of dialogues: the seeds of its episodes, and the longest token sequence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlsys.config import DialogueSection
from rlsys.environments.base import InputContext, Inputs
from rlsys.environments.dialogue import evaluation_episodes, training_episodes
from rlsys.errors import ModelError
from rlsys.tokenization.think import ThoughtEnd
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
        context: configuration, tokenizer and model limit.
        asked: questions that the environment may ask; the first ones become the canary prompts.
        shown: names that the prompt template may show, with the values that take most characters.
        summary: one sentence that describes where the episodes come from.
        complete: True if `asked` contains the longest question, so that the length of a whole
            episode is known before the run.

    Raises ModelError if not even one turn fits into the longest sequence of the model.
    """
    config, renderer, limit = context.config, context.renderer, context.limit
    settings = context.settings(DialogueSection)
    # Called for their errors only: a missing EOS or end of thought is reported before Ray starts.
    eos_ids(context.tokenizer)
    ThoughtEnd.resolve(context.tokenizer, settings.think_end)
    prompts = [renderer.render_first(text, shown) for text in asked]
    # Called for its errors too: not every chat template can continue after a reply.
    renderer.render_next(asked[0], shown, last_token=-1)
    longest = max(map(len, prompts))
    if longest + settings.reply_tokens > limit:
        raise ModelError(
            f"a prompt of {longest} tokens and environment.reply_tokens {settings.reply_tokens} do "
            f"not fit into the {limit} tokens that model.path {config.model.path!r} takes; lower "
            "environment.reply_tokens"
        )
    # Without a known longest question, one observation may be of any length, so an episode may fill
    # the whole context of the model.
    whole = settings.most_turns * longest + settings.longest_episode
    length = min(limit, whole) if complete else limit
    if complete and whole > limit:
        summary += (
            f"; an episode may need {whole:,} tokens, and questions after the end of the context "
            "are not answered"
        )
    return Inputs(
        train=training_episodes(config.seed, config.steps * config.batch.most_sampled),
        evaluation=evaluation_episodes(config.evaluation.problems),
        longest_sequence=length,
        canary=tuple(prompts[: config.sync.canary_prompts]),
        summary=f"{summary}; sequences of at most {length:,} tokens",
    )
