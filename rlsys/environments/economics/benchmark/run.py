"""`rlsys eval economics`: agents play the same episodes one after the other; JSON, plots, a table.

Everything that can be wrong is looked at before the first agent plays: keys, endpoints, model
folders, the server, and whether the solver can answer its questions.
"""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from rich.table import Table

from rlsys.environments.economics.benchmark.baselines import (
    Allocator,
    Baseline,
    ColumnAdder,
    DifficultyOracle,
    Filler,
    GreedyMax,
    LinUCB,
    Uniform,
)
from rlsys.environments.economics.benchmark.config import (
    EconomicsEvaluationConfig,
    LocalModelConfig,
)
from rlsys.environments.economics.benchmark.language_models import ModelAgent, endpoint_agent
from rlsys.environments.economics.benchmark.oracle import with_estimated_oracle, with_exact_oracle
from rlsys.environments.economics.benchmark.play import Agent, Paper, evaluate, read_papers
from rlsys.environments.economics.benchmark.results import (
    EpisodeResult,
    Raw,
    read_results,
    write_results,
)
from rlsys.environments.economics.benchmark.sessions import (
    ResetWith,
    Sessions,
    local_sessions,
    served_sessions,
)
from rlsys.environments.economics.benchmark.summary import summary
from rlsys.environments.economics.counting import WORDS, TokenCounter
from rlsys.environments.economics.counting import load_tokenizer as load_counter
from rlsys.environments.economics.models import EconomicsObservation
from rlsys.errors import ConfigError, DataError
from rlsys.tokenization.model_folder import check_model
from rlsys.tokenization.tokenizer import load_tokenizer
from rlsys.types import Generator

RESULTS = "results.json"


class Engine(Generator, AbstractAsyncContextManager["Engine", None], Protocol):
    """A Generator that runs inside `async with`."""


OpenEngine = Callable[[LocalModelConfig, int], Engine]
"""Makes the engine of a model, for sequences of at most so many tokens; starts nothing."""


class _Course(NamedTuple):
    """What every agent plays."""

    sessions: Sessions
    options: ResetWith
    papers: dict[int, Paper]
    warmup: dict[int, Paper]
    counter: TokenCounter
    """Counts like the environment."""
    data_source: str
    """Where the environment has its questions from, in its words."""


async def evaluate_agents(
    config: EconomicsEvaluationConfig,
    added: Sequence[Path],
    open_engine: OpenEngine,
    say: Callable[[str], None],
) -> Raw:
    """Let the agents of `config` play, put those of the files `added` beside them.

    `out`/results.json is written anew after each agent. Returns the episodes of all.

    Raises UserError before anything is played if something is wrong, EpisodeLost if the server
    goes away while they play.
    """
    strangers = _read_added(added, config.agents)
    raw: dict[str, Sequence[EpisodeResult]] = {}
    async with AsyncExitStack() as stack:
        agents = await _language_models(config, open_engine, stack)
        course = await _course(config) if config.agents else None
        settings = _settings(config, course)
        if course is not None:
            _make_folder(config.out)
            say(f"questions: {course.data_source}")
        for name in config.agents:
            assert course is not None
            started = time.monotonic()
            if name in config.baselines:
                raw[name] = await _play_baseline(name, config, course)
            else:
                async with agents[name] as agent:
                    episodes = await evaluate(agent, course.sessions, course.papers, course.options)
                raw[name] = with_estimated_oracle(episodes, course.counter, config.environment)
            write_results(config.out / RESULTS, raw, settings=settings)
            say(f"{name}: {len(raw[name])} episodes in {time.monotonic() - started:.1f} s")
    for name, episodes in strangers.items():
        raw[name] = _fitted(episodes, course, config) if course else episodes
    if not raw:
        raise ConfigError("there is nobody to evaluate; name some agents, or add a file of results")
    write_results(config.out / RESULTS, raw, settings=settings)
    return raw


def _make_folder(out: Path) -> None:
    """Make the folder of the results before anybody plays for hours."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"out {out} cannot be a folder ({error.strerror}); name another"
        ) from None


def results_table(raw: Raw) -> Table:
    """Means over episodes, the largest return first; all intervals are in the file of results."""
    table = Table(title="Means per episode (95 % bootstrap interval)")
    table.add_column("agent", overflow="fold")
    for heading in ("return", "right/N", "answered/N", "spent/B", "regret"):
        table.add_column(heading, justify="right", no_wrap=True)
    rows = {agent: summary(episodes) for agent, episodes in raw.items()}
    for agent, numbers in sorted(rows.items(), key=lambda row: -row[1]["total_reward"]["mean"]):
        total = numbers["total_reward"]
        means = [numbers[name]["mean"] for name in ("accuracy", "answered", "utilisation")]
        table.add_row(
            agent,
            f"{total['mean']:.2f} [{total['low']:.2f}, {total['high']:.2f}]",
            *(f"{mean:.2f}" for mean in means),
            f"{numbers['regret']['mean']:.2f}" if "regret" in numbers else "unknown",
        )
    return table


def _settings(config: EconomicsEvaluationConfig, course: _Course | None) -> dict[str, Any]:
    """What the file of results tells about how its episodes came about."""
    settings: dict[str, Any] = config.model_dump(mode="json")
    if config.url is not None:
        del settings["environment"]["corpus"]  # the server's own is played, which data_source names
    return settings if course is None else settings | {"data_source": course.data_source}


def _read_added(paths: Sequence[Path], taken: Sequence[str]) -> dict[str, list[EpisodeResult]]:
    added: dict[str, list[EpisodeResult]] = {}
    for path in paths:
        for agent, episodes in read_results(path).items():
            if agent in added or agent in taken:
                raise DataError(f"{path} holds {agent!r}, and there is one already; rename it")
            added[agent] = episodes
    return added


async def _language_models(
    config: EconomicsEvaluationConfig, open_engine: OpenEngine, stack: AsyncExitStack
) -> Mapping[str, AbstractAsyncContextManager[Agent]]:
    """Agents to be entered when they play: endpoints are connected now, engines start then."""
    agents: dict[str, AbstractAsyncContextManager[Agent]] = {}
    for model in config.asked_models:
        tokenizer = load_tokenizer(model.model.path)
        max_length = check_model(model.model, on_cpu=not model.generation.gpus_per_engine)
        engine = open_engine(model, max_length)
        agents[model.name] = _running(
            engine, ModelAgent(model, engine, tokenizer, max_length=max_length)
        )
    for endpoint in config.asked_endpoints:
        agent = await stack.enter_async_context(endpoint_agent(endpoint))
        agents[endpoint.name] = _connected(agent)
    return agents


@asynccontextmanager
async def _running(engine: Engine, agent: Agent) -> AsyncIterator[Agent]:
    async with engine:
        yield agent


@asynccontextmanager
async def _connected(agent: Agent) -> AsyncIterator[Agent]:
    yield agent


async def _course(config: EconomicsEvaluationConfig) -> _Course:
    """Meet the environment and read all questions.

    Raises ConfigError where the server is not what `environment` says, or where baselines cannot
    play with what it shows.
    """
    sessions = served_sessions(config.url) if config.url else local_sessions(config.environment)
    options = ResetWith(config.total_budget, config.tokenizer_name)
    warmup_seeds = config.warmup_seeds if "bandit" in config.agents else ()
    async with sessions() as session:
        seen = await session.reset(config.seed, options)
        _check_server(seen, config)
        _check_types(seen, config)
        papers = await read_papers(session, config.seeds)
        warmup = await read_papers(session, warmup_seeds)
    if config.baselines:
        _check_solver(config, [*papers.values(), *warmup.values()])
    unit = seen.counting_unit
    counter = WORDS if unit == WORDS.unit else load_counter(unit.removeprefix("tokens of "))
    return _Course(sessions, options, papers, warmup, counter, seen.data_source)


def _check_server(seen: EconomicsObservation, config: EconomicsEvaluationConfig) -> None:
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
            "leave difficulty_oracle out of agents"
        )


def _check_solver(config: EconomicsEvaluationConfig, papers: Sequence[Paper]) -> None:
    for paper in papers if config.solver == "adder" else ():
        for text in paper.texts:
            if not re.fullmatch(r"\d([+-]\d)*", text):
                raise ConfigError(
                    f"solver 'adder' works out sums of one-digit numbers, not {text[:60]!r}; set "
                    "solver=filler"
                )


async def _play_baseline(
    name: str, config: EconomicsEvaluationConfig, course: _Course
) -> list[EpisodeResult]:
    solver = (ColumnAdder if config.solver == "adder" else Filler)(course.counter)
    agent = Baseline(_allocator(name, config), solver)
    if name == "bandit":
        await evaluate(agent, course.sessions, course.warmup, course.options)
    episodes = await evaluate(agent, course.sessions, course.papers, course.options)
    if config.solver == "adder":
        return with_exact_oracle(episodes, course.papers, course.counter, config.environment)
    return with_estimated_oracle(episodes, course.counter, config.environment)


def _allocator(name: str, config: EconomicsEvaluationConfig) -> Allocator:
    bounds = config.min_allocation, config.max_allocation
    match name:
        case "uniform":
            return Uniform(*bounds)
        case "greedy_max":
            return GreedyMax(*bounds)
        case "difficulty_oracle":
            return DifficultyOracle(*bounds)
        case "bandit":
            return LinUCB(*bounds)
    raise AssertionError(name)


def _fitted(
    episodes: Sequence[EpisodeResult], course: _Course, config: EconomicsEvaluationConfig
) -> list[EpisodeResult]:
    """Episodes from a file; where they are ours, with all types and the oracle's return."""
    known = []
    for episode in episodes:
        paper = course.papers.get(episode.seed)
        ours = (
            paper is not None
            and episode.questions == len(paper.types)
            and episode.types == paper.types[: len(episode.types)]
        )
        known.append(replace(episode, types=paper.types) if paper and ours else episode)
    return with_estimated_oracle(known, course.counter, config.environment)
