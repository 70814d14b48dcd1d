"""`rlsys eval economics` compares agents; `rlsys serve-env` serves the economics environment."""

from __future__ import annotations

import asyncio
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlsys.cli.common import Overrides, sentences, terminal
from rlsys.errors import UserError

if TYPE_CHECKING:
    from rlsys.config import LocalModelConfig
    from rlsys.launch.local_model import LocalModel

SettingsFile = Annotated[
    Path | None,
    typer.Option("--config", help="A YAML file of settings; without it the defaults apply."),
]


def compare_agents(
    overrides: Overrides = None,
    config_file: SettingsFile = None,
    add: Annotated[
        list[Path] | None,
        typer.Option("--add", help="A file with results of other agents; may be repeated."),
    ] = None,
) -> None:
    """Compare agents on one shared token budget and write numbers and plots to the folder `out`."""
    with sentences():
        from rlsys.config import EconomicsEvaluationConfig
        from rlsys.config.loading import load_config

        for package in ("openenv", "matplotlib", "openai"):
            if find_spec(package) is None:
                raise UserError(
                    f"eval economics needs {package}; install it with pip install 'rlsys[env,eval]'"
                )
        from rlsys.environments.economics.benchmark import run
        from rlsys.environments.economics.benchmark.plots import plot_results

        config = load_config(config_file, overrides or [], EconomicsEvaluationConfig)
        console = terminal()
        episodes = asyncio.run(run.run_benchmark(config, add or [], _local_model, console.print))
        console.print(run.results_table(episodes))
        plots = plot_results(config.out / run.RESULTS, config.out)
        console.print(f"wrote {run.RESULTS} and {len(plots)} plots to {config.out}")


def serve_environment(
    overrides: Overrides = None,
    config_file: SettingsFile = None,
    stage_folder: Annotated[
        Path | None,
        typer.Option("--stage", help="Do not serve; write a folder for `openenv push` instead."),
    ] = None,
) -> None:
    """Serve the economics environment with OpenEnv, for instance with `port=8001`."""
    with sentences():
        if stage_folder is not None:
            from rlsys.environments.economics.server.staging import stage

            stage(stage_folder)
            typer.echo(f"wrote {stage_folder}")
            return
        from rlsys.config import EconomicsServerConfig
        from rlsys.config.loading import load_config

        config = load_config(config_file, overrides or [], EconomicsServerConfig)
        if find_spec("openenv") is None:
            raise UserError("serve-env needs OpenEnv; install it with pip install 'rlsys[env]'")
        from rlsys.environments.economics.server.application import serve

        serve(config)


def _local_model(config: LocalModelConfig, max_length: int) -> LocalModel:
    """Return the engines of a model. Ray is imported here, so other agents start without it."""
    from rlsys.launch.local_model import LocalModel

    return LocalModel(config, max_length)
