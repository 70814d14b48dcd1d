"""Where the numbers of a run go, beside metrics.jsonl."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rlsys.config.base import NonNegativeInt, Section

SinkName = Literal["tensorboard", "wandb", "mlflow", "trackio"]


class ReportingConfig(Section):
    """Services that get metrics, evaluations and a table of the episodes of every evaluation.

    The run folder always has all of them as files. Each service is set up by its own environment
    variables, for instance WANDB_MODE=offline or MLFLOW_TRACKING_URI.
    """

    sinks: tuple[SinkName, ...] = ("tensorboard",)
    """`wandb`, `mlflow` and `trackio` need `pip install 'rlsys[NAME]'`. An error of these three
    is a warning and never ends the run. `tensorboard` writes into the run folder and gets no
    table."""
    project: Annotated[str, Field(min_length=1)] = "rlsys"
    """Project of W&B and trackio, experiment of MLflow."""


class RunReportingConfig(ReportingConfig):
    """The same for a run with engines, which can also be traced."""

    trace_steps: NonNegativeInt = 0
    """So many steps, after the first one of a start, are traced into the folder `trace` of the run,
    for ui.perfetto.dev: torch.profiler of rank 0, and what all processes did. 0 traces nothing."""
