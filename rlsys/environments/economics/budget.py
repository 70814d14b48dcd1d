"""The token budget of an episode and its source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from rlsys.config.economics import EconomicsConfig
from rlsys.environments.economics.counting import TokenCounter
from rlsys.environments.economics.errors import RequestError

BudgetSource = Literal["client", "tokenizer_native", "config"]


class Budget(NamedTuple):
    """Tokens of one episode, and which rule gave the number."""

    tokens: int
    source: BudgetSource


def resolve_budget(
    config: EconomicsConfig,
    questions: Sequence[str],
    *,
    total_budget: int | None,
    tokenizer: TokenCounter | None,
) -> Budget:
    """Return the budget of an episode that asks `questions`.

    The first of these that is given decides: the client's `total_budget`; the client's `tokenizer`
    (`native_budget` of the question texts); the configuration (`EconomicsConfig.config_budget`).

    Raises RequestError if `total_budget` is too small for a single answer.
    """
    # Hard mode ends an episode once fewer than min_tokens remain, so a smaller budget would end it
    # before the first answer. Soft mode never ends early; it only needs a budget above 0, because
    # rewards divide by the fair share.
    least = config.min_tokens if config.mode == "hard" else 1
    if total_budget is not None:
        # The client chose this number, so it is told. The two numbers below are computed: the
        # configuration checks its own, and a native one depends on questions that the client
        # cannot see beforehand, so it is raised to `least` instead of refused.
        if total_budget < least:
            raise RequestError(
                f"total_budget {total_budget} is less than {least}, the fewest tokens that allow "
                "an answer; send a larger one"
            )
        return Budget(total_budget, "client")
    if tokenizer is not None:
        counted = sum(tokenizer.count(text) for text in questions)
        return Budget(native_budget(counted, config.budget_ratio, least), "tokenizer_native")
    return Budget(config.config_budget, "config")


def native_budget(question_tokens: int, ratio: float, least: int = 1) -> int:
    """Return ratio * question_tokens, truncated, but not less than `least`.

    Example: native_budget(7, 2.5) is 17
    """
    return max(least, int(ratio * question_tokens))
