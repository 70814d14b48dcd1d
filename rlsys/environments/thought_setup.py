"""What environments with thoughts make of the settings of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rlsys.algorithms.reflection import count_reflections
from rlsys.config import ThoughtSection
from rlsys.environments.base import InputContext, RolloutContext
from rlsys.environments.thoughts import ThoughtSampler
from rlsys.tokenization.think import ThinkTokens

CountReflections = Callable[[Sequence[int]], int]
"""Returns the number of reflections in the tokens of a thought."""


def tokens_after_prompt(context: InputContext, *, answer_tokens: int | None = None) -> int:
    """Return the most tokens after a prompt: thought, closing, end of thought, header, answer."""
    settings = context.settings(ThoughtSection)
    think = ThinkTokens.resolve(context.tokenizer, settings)
    # Training and evaluation use the same engines, so the limit must hold for both.
    longest = max(settings.longest_thought, context.config.evaluation_budgets[-1])
    return longest + len(think.cut_ids) + (answer_tokens or settings.answer_tokens)


def thought_sampler(context: RolloutContext, settings: ThoughtSection) -> ThoughtSampler:
    """Return the sampler of an environment with thoughts."""
    return ThoughtSampler(
        think=ThinkTokens.resolve(context.tokenizer, settings),
        decode=context.decode,
        temperature=context.temperature,
        top_p=context.top_p,
        generator=context.generator,
        grader=context.grader,
    )


def reflection_counter(context: RolloutContext, settings: ThoughtSection) -> CountReflections:
    """Return a function that counts reflections by the settings `environment.reflections`."""
    counting = settings.reflections

    def count(thought: Sequence[int]) -> int:
        text = context.decode(thought)
        return count_reflections(text, counting.mode, words=counting.words, gap=counting.gap)

    return count
