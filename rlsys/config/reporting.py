"""Where the numbers of a run go, beside metrics.jsonl."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rlsys.config.base import Section

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
