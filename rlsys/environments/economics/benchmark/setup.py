"""The setup that all agents share: sessions, questions and token counter, checked beforehand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rlsys.config import EconomicsEvaluationConfig
from rlsys.environments.economics.benchmark.play import QuestionSheet, read_question_sheets
from rlsys.environments.economics.benchmark.sessions import (
    OpenSession,
    ResetArguments,
    local_sessions,
    served_sessions,
)
from rlsys.environments.economics.benchmark.solvers import ColumnAdder
from rlsys.environments.economics.counting import WORDS, TokenCounter, load_tokenizer
from rlsys.environments.economics.models import EconomicsObservation
from rlsys.errors import ConfigError


class BenchmarkSetup(NamedTuple):
    """What all agents of a benchmark share."""

    open_session: OpenSession
    arguments: ResetArguments
    sheets: dict[int, QuestionSheet]
    """Seed -> questions of the evaluated episodes."""
    warmup_sheets: dict[int, QuestionSheet]
    """Seed -> questions of the bandit's warmup episodes."""
    counter: TokenCounter
    """Counts tokens as the environment does."""
    data_source: str
    """Source of the questions, as the environment reports it."""


async def prepare_benchmark(config: EconomicsEvaluationConfig) -> BenchmarkSetup:
    """Connect to the environment, check it and read all questions.

    Raises ConfigError if the server's rules differ from `config.environment`, or if an agent needs
    something that the environment does not provide.
    """
    url = config.url
    open_session = served_sessions(url) if url else local_sessions(config.environment)
    arguments = ResetArguments(config.total_budget, config.tokenizer_name)
    async with open_session() as session:
        seen = await session.reset(config.seed, arguments)
        _check_rules(seen, config)
        _check_types(seen, config)
        sheets = await read_question_sheets(session, config.seeds)
        warmup_sheets = await read_question_sheets(session, config.warmup_seeds)
    if config.asked_allocators and config.solver == "adder":
        _check_sums([*sheets.values(), *warmup_sheets.values()])
    unit = seen.counting_unit
    counter = WORDS if unit == WORDS.unit else load_tokenizer(unit.removeprefix("tokens of "))
    return BenchmarkSetup(open_session, arguments, sheets, warmup_sheets, counter, seen.data_source)


def _check_rules(seen: EconomicsObservation, config: EconomicsEvaluationConfig) -> None:
    """Regret is computed with the settings of `environment`, so the server must have the same."""
    for name, theirs, ours in (
        ("mode", seen.budget_mode, config.environment.mode),
        ("problems", seen.num_questions, config.environment.problems),
        ("min_tokens", seen.min_tokens, config.environment.min_tokens),
        ("rules", seen.rules, config.environment.rules),
        ("coefficients", seen.coefficients, config.environment.coefficients),
    ):
        if theirs != ours:
            raise ConfigError(
                f"environment.{name} is {ours}, but the server at {config.url} plays with "
                f"{theirs}; set environment.{name}={theirs}, and its other settings likewise"
            )


def _check_types(seen: EconomicsObservation, config: EconomicsEvaluationConfig) -> None:
    if "difficulty_oracle" in config.agents and seen.problem_type is None:
        hides, remedy = "the environment hides", "set environment.reveal_type=true"
        if config.url is not None:
            hides = f"the server at {config.url} hides"
            remedy = "start it with rlsys serve-env environment.reveal_type=true"
        raise ConfigError(
            f"difficulty_oracle needs the types of the questions, which {hides}; {remedy}, or "
            "remove difficulty_oracle from agents"
        )


def _check_sums(sheets: Sequence[QuestionSheet]) -> None:
    for sheet in sheets:
        for text in sheet.texts:
            if not ColumnAdder.can_solve(text):
                raise ConfigError(
                    f"solver 'adder' computes sums of one-digit numbers, not {text[:60]!r}; set "
                    "solver=filler"
                )
