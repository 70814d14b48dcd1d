"""Weights & Biases. WANDB_MODE=offline writes to the run folder; `wandb sync` uploads it later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlsys.reporting.sinks.base import TrackedRun


class WandbSink:
    """Records one run with the library wandb."""

    def __init__(self, run: TrackedRun) -> None:
        import wandb

        self._library = wandb
        self._run = wandb.init(
            project=run.project,
            name=run.name,
            id=run.id,
            resume="allow",
            dir=str(run.run_dir),
            config=dict(run.config),
            settings=wandb.Settings(console="off", silent=True),
        )
        # W&B drops rows below its own last step. With a step metric of ours, a resumed run can
        # record the steps again that it trains again.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def numbers(self, step: int, numbers: Mapping[str, float]) -> None:
        """Log one row."""
        self._run.log({"step": step, **numbers})

    def episodes(self, step: int, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Log a table."""
        # A column of W&B has one type; text holds every cell.
        data = [["" if cell is None else str(cell) for cell in row] for row in rows]
        table = self._library.Table(columns=list(columns), data=data)
        self._run.log({"step": step, "episodes": table})

    def close(self) -> None:
        """End the run and wait for its upload."""
        self._run.finish()
