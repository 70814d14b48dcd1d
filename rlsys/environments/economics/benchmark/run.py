"""`rlsys eval economics`: agents play the same episodes one after the other; JSON, plots, a table.

All inputs are checked before the first agent plays: keys, endpoints, model folders, the server, and
whether the solver can answer its questions.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol

from rich.table import Table

from rlsys.config import EconomicsEvaluationConfig, LocalModelConfig
from rlsys.config.economics_benchmark import AllocatorName
from rlsys.environments.economics.benchmark.agents import Agent, AllocatorAgent
from rlsys.environments.economics.benchmark.allocators import (
    Allocator,
    DifficultyOracle,
    GreedyMax,
    LinUCB,
    Uniform,
)
from rlsys.environments.economics.benchmark.language_models import ModelAgent, endpoint_agent
from rlsys.environments.economics.benchmark.oracle import with_estimated_oracle, with_exact_oracle
from rlsys.environments.economics.benchmark.play import play_episodes
from rlsys.environments.economics.benchmark.results import (
    EpisodeResult,
    EpisodesByAgent,
    read_results,
    write_results,
)
from rlsys.environments.economics.benchmark.setup import BenchmarkSetup, prepare_benchmark
from rlsys.environments.economics.benchmark.solvers import ColumnAdder, Filler
from rlsys.environments.economics.benchmark.summary import summary
from rlsys.errors import ConfigError, DataError
from rlsys.tokenization.model_folder import check_model
from rlsys.tokenization.tokenizer import load_tokenizer
from rlsys.types import Generator

RESULTS: Final = "results.json"


class Engine(Generator, AbstractAsyncContextManager["Engine", None], Protocol):
    """A Generator that runs inside `async with`."""


OpenEngine = Callable[[LocalModelConfig, int], Engine]
"""Makes the engine of a model for sequences up to a number of tokens; starts nothing."""


async def run_benchmark(
    config: EconomicsEvaluationConfig,
    added_files: Sequence[Path],
    open_engine: OpenEngine,
    say: Callable[[str], None],
) -> EpisodesByAgent:
    """Let the agents of `config` play, and add the results in `added_files`.

    `out`/results.json is written again after each agent. Returns the episodes of all agents.

    Raises UserError before any agent plays if an input is wrong, and EpisodeLost if the server ends
    a session during play.
    """
    added = _read_added(added_files, config.agents)
    played: dict[str, Sequence[EpisodeResult]] = {}
    setup = None
    async with AsyncExitStack() as stack:
        models = await _language_models(config, open_engine, stack)
        if config.agents:
            setup = await prepare_benchmark(config)
            _make_folder(config.out)
            say(f"questions: {setup.data_source}")
            allocators: dict[str, Allocator] = {
                name: _allocator(name, config) for name in config.asked_allocators
            }
            for name in config.agents:
                started = time.monotonic()
                if name in models:
                    played[name] = await _play_model(models[name], config, setup)
                else:
                    allocator = allocators[name]
                    played[name] = await _play_allocator(allocator, config, setup)
                write_results(config.out / RESULTS, played, settings=_settings(config, setup))
                say(f"{name}: {len(played[name])} episodes in {time.monotonic() - started:.1f} s")
    for name, episodes in added.items():
        played[name] = _with_types_and_oracle(episodes, setup, config) if setup else episodes
    if not played:
        raise ConfigError("there is no agent to evaluate; name some agents or --add a results file")
    write_results(config.out / RESULTS, played, settings=_settings(config, setup))
    return played


def _make_folder(out: Path) -> None:
    """Create the folder of the results before the agents play, which may take hours."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"out {out} cannot be a folder ({error.strerror}); name another"
        ) from None


def results_table(played: EpisodesByAgent) -> Table:
    """Return a table of means over episodes, the largest return first."""
    table = Table(title="Means per episode (95 % bootstrap interval)")
    table.add_column("agent", overflow="fold")
    for heading in ("return", "right/N", "answered/N", "spent/B", "regret"):
        table.add_column(heading, justify="right", no_wrap=True)
    rows = {agent: summary(episodes) for agent, episodes in played.items()}
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


def _settings(config: EconomicsEvaluationConfig, setup: BenchmarkSetup | None) -> dict[str, object]:
    """The settings that the results file records."""
    settings: dict[str, object] = config.model_dump(mode="json")
    if config.url is not None:
        # The server has its own questions; `data_source` names them.
        settings["environment"] = config.environment.model_dump(mode="json", exclude={"corpus"})
    return settings if setup is None else settings | {"data_source": setup.data_source}


def _read_added(paths: Sequence[Path], taken: Sequence[str]) -> dict[str, list[EpisodeResult]]:
    added: dict[str, list[EpisodeResult]] = {}
    for path in paths:
        for agent, episodes in read_results(path).items():
            if agent in added or agent in taken:
                raise DataError(
                    f"{path} holds results of {agent!r}, but there is already an agent of that "
                    "name; rename one of them"
                )
            added[agent] = episodes
    return added


AgentContext = AbstractAsyncContextManager[Agent]
"""Entered when the agent begins to play."""


async def _language_models(
    config: EconomicsEvaluationConfig, open_engine: OpenEngine, stack: AsyncExitStack
) -> dict[str, AgentContext]:
    """Connect to the endpoints and check the model folders; engines start when entered."""
    agents: dict[str, AgentContext] = {}
    for model in config.asked_models:
        tokenizer = load_tokenizer(model.model.path)
        max_length = check_model(model.model, on_cpu=not model.generation.gpus_per_engine)
        engine = open_engine(model, max_length)
        agents[model.name] = _with_engine(
            engine, ModelAgent(model, engine, tokenizer, max_length=max_length)
        )
    for endpoint in config.asked_endpoints:
        agent = await stack.enter_async_context(endpoint_agent(endpoint))
        agents[endpoint.name] = _ready(agent)
    return agents


@asynccontextmanager
async def _with_engine(engine: Engine, agent: Agent) -> AsyncIterator[Agent]:
    async with engine:
        yield agent


@asynccontextmanager
async def _ready(agent: Agent) -> AsyncIterator[Agent]:
    yield agent


async def _play_model(
    context: AgentContext, config: EconomicsEvaluationConfig, setup: BenchmarkSetup
) -> list[EpisodeResult]:
    async with context as agent:
        episodes = await play_episodes(agent, setup.open_session, setup.sheets, setup.arguments)
    return with_estimated_oracle(episodes, setup.counter, config.environment)


async def _play_allocator(
    allocator: Allocator, config: EconomicsEvaluationConfig, setup: BenchmarkSetup
) -> list[EpisodeResult]:
    solver = (ColumnAdder if config.solver == "adder" else Filler)(setup.counter)
    agent = AllocatorAgent(allocator, solver)
    if isinstance(allocator, LinUCB):
        await play_episodes(agent, setup.open_session, setup.warmup_sheets, setup.arguments)
    episodes = await play_episodes(agent, setup.open_session, setup.sheets, setup.arguments)
    if config.solver == "adder":
        return with_exact_oracle(episodes, setup.sheets, setup.counter, config.environment)
    return with_estimated_oracle(episodes, setup.counter, config.environment)


def _allocator(name: AllocatorName, config: EconomicsEvaluationConfig) -> Allocator:
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


def _with_types_and_oracle(
    episodes: Sequence[EpisodeResult], setup: BenchmarkSetup, config: EconomicsEvaluationConfig
) -> list[EpisodeResult]:
    """Complete episodes from a file whose questions are those of this benchmark.

    A file may hold the types of the answered questions only. If the seed, the number of questions
    and those types agree with the benchmark, the other types are filled in, and regret can be
    estimated. Other episodes are returned as they are.
    """
    completed = []
    for episode in episodes:
        sheet = setup.sheets.get(episode.seed)
        same_questions = (
            sheet is not None
            and episode.questions == len(sheet.types)
            and episode.types == sheet.types[: len(episode.types)]
        )
        completed.append(
            replace(episode, types=sheet.types) if sheet and same_questions else episode
        )
    return with_estimated_oracle(completed, setup.counter, config.environment)
