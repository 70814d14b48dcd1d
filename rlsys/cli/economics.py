"""`rlsys eval economics`: agents compared on one shared token budget."""

from __future__ import annotations

import asyncio
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlsys.cli.common import Overrides, sentences, terminal
from rlsys.errors import UserError

if TYPE_CHECKING:
    from rlsys.environments.economics.benchmark.config import LocalModelConfig
    from rlsys.launch.local_model import LocalModel


def evaluate(
    overrides: Overrides = None,
    config_file: Annotated[
        Path | None, typer.Option("--config", help="A YAML file of settings; else the defaults.")
    ] = None,
    add: Annotated[
        list[Path] | None,
        typer.Option("--add", help="Results of other agents to set beside them; may be repeated."),
    ] = None,
) -> None:
    """Compare agents on one shared token budget; numbers and plots are in `out`."""
    with sentences():
        from rlsys.config.loading import load_config

        for package in ("openenv", "scipy", "matplotlib", "openai"):
            if find_spec(package) is None:
                raise UserError(
                    f"eval economics needs {package}; install it with pip install 'rlsys[env,eval]'"
                )
        from rlsys.environments.economics.benchmark import run as evaluation
        from rlsys.environments.economics.benchmark.config import EconomicsEvaluationConfig
        from rlsys.environments.economics.benchmark.plots import plot_results

        config = load_config(config_file, overrides or [], EconomicsEvaluationConfig)
        console = terminal()
        raw = asyncio.run(
            evaluation.evaluate_agents(config, add or [], _local_model, console.print)
        )
        console.print(evaluation.results_table(raw))
        plots = plot_results(config.out / evaluation.RESULTS, config.out)
        console.print(f"wrote {evaluation.RESULTS} and {len(plots)} plots to {config.out}")


def _local_model(config: LocalModelConfig, max_length: int) -> LocalModel:
    """Ray is imported only where an engine is asked for."""
    from rlsys.launch.local_model import LocalModel

    return LocalModel(config, max_length)
