"""How many tokens an episode may spend, and who said so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from rlsys.environments.economics.config import EconomicsConfig
from rlsys.environments.economics.counting import TokenCounter
from rlsys.environments.economics.errors import RequestError

BudgetSource = Literal["client", "tokenizer_native", "config"]


class Budget(NamedTuple):
    """Tokens of one episode."""

    tokens: int
    source: BudgetSource


def resolve_budget(
    config: EconomicsConfig,
    questions: Sequence[str],
    *,
    total_budget: int | None,
    tokenizer: TokenCounter | None,
) -> Budget:
    """Return the budget: the client's number, else from its tokenizer, else the configuration's.

    `tokenizer` is the one that the client named, None if it named none.
    Raises RequestError for a number that no episode can be played with.
    """
    least = config.min_tokens if config.mode == "hard" else 1
    if total_budget is not None:
        if total_budget < least:
            raise RequestError(
                f"total_budget {total_budget} is less than {least}, below which an episode ends "
                "before its first answer; send a larger one"
            )
        return Budget(total_budget, "client")
    if tokenizer is not None:
        counted = sum(tokenizer.count(text) for text in questions)
        return Budget(native_budget(counted, config.budget_ratio, least), "tokenizer_native")
    return Budget(config.config_budget, "config")


def native_budget(question_tokens: int, ratio: float, least: int = 1) -> int:
    """Return ratio * question_tokens truncated, at least `least`.

    Example: native_budget(7, 2.5) is 17
    """
    return max(least, int(ratio * question_tokens))
