"""Epochs as steps: how many there are is known once the data are read."""

from __future__ import annotations

from rlsys.config import RunConfig, SftConfig
from rlsys.errors import ConfigError
from rlsys.launch.inputs import check_inputs
from rlsys.sft.rows import FileRows, SupervisedRows


def run_with_steps(config: RunConfig) -> RunConfig:
    """Return the run with the number of `steps` that its `epochs` stand for.

    Problems whose prompt is too long do not count. Raises the errors of `check_inputs`, and
    ConfigError if there are fewer problems than one step takes.
    """
    if config.epochs is None:
        return config
    problems, per_step = len(check_inputs(config).train), config.batch.problems
    steps = _steps(config.epochs, problems, per_step, f"{problems:,} problems", "batch.problems")
    return config.model_copy(update={"steps": steps})


def sft_with_steps(config: SftConfig, rows: SupervisedRows) -> SftConfig:
    """The same for a supervised run with these rows."""
    if config.epochs is None:
        return config
    assert isinstance(rows, FileRows), "SftConfig refuses epochs of endless rows"
    per_step = config.rows_per_step
    steps = _steps(config.epochs, len(rows), per_step, f"{len(rows):,} rows", "rows_per_step")
    return config.model_copy(update={"steps": steps})


def _steps(epochs: int, rows: int, per_step: int, what: str, key: str) -> int:
    # Rounded down in every epoch, as published code drops the last incomplete batch.
    steps = epochs * (rows // per_step)
    if not steps:
        raise ConfigError(
            f"an epoch has {what}, fewer than the {per_step:,} of one step ({key}); lower {key}, "
            "or set steps in the place of epochs"
        )
    return steps
