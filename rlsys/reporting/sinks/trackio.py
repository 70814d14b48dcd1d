"""trackio: a local dashboard with the interface of W&B. TRACKIO_DIR is its folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlsys.reporting.sinks.base import TrackedRun


class TrackioSink:
    """Records one run with the library trackio."""

    def __init__(self, run: TrackedRun) -> None:
        import trackio

        self._library = trackio
        # trackio knows runs by their names, so the id is part of it.
        self._run = trackio.init(
            project=run.project,
            name=f"{run.name}-{run.id[:8]}",
            config=dict(run.config),
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def numbers(self, step: int, numbers: Mapping[str, float]) -> None:
        """Log one row."""
        self._run.log(dict(numbers), step=step)

    def episodes(self, step: int, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Log a table."""
        table = self._library.Table(columns=list(columns), data=[list(row) for row in rows])
        self._run.log({"episodes": table}, step=step)

    def close(self) -> None:
        """End the run."""
        self._run.finish()
