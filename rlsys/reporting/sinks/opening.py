"""From the names in `reporting.sinks` to sinks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rlsys.config.reporting import ReportingConfig, SinkName
from rlsys.errors import ConfigError
from rlsys.reporting.sinks.background import BackgroundSink
from rlsys.reporting.sinks.base import Sink, TrackedRun, episode_table, run_id
from rlsys.reporting.sinks.tensorboard import TensorBoardSink


def check_sinks(config: ReportingConfig) -> None:
    """Raise ConfigError if the library of a sink is not installed."""
    for name in config.sinks:
        if find_spec(name) is None:
            raise ConfigError(
                f"reporting.sinks names {name!r}, which is not installed; run "
                f"`pip install 'rlsys[{name}]'`, or take {name!r} out of the list"
            )


class Sinks:
    """All sinks of one run. They are opened when the run writes its first row."""

    def __init__(
        self,
        config: ReportingConfig,
        run_dir: Path,
        settings: Mapping[str, Any],
        resumed_step: int,
        warn: Callable[[str], None],
    ) -> None:
        """`settings` is the resolved configuration, of which services show the values."""
        self._run_dir = run_dir
        self._events: TensorBoardSink | None = None
        self._services: list[BackgroundSink] = []
        if "tensorboard" in config.sinks:
            self._events = TensorBoardSink(run_dir, resumed_step)
        services = [name for name in config.sinks if name != "tensorboard"]
        if services:
            run = TrackedRun(
                project=config.project,
                name=str(settings.get("name") or run_dir.name),
                id=run_id(run_dir, resumed=resumed_step > 0),
                run_dir=run_dir,
                config=settings,
            )
            self._services = [BackgroundSink(name, _maker(name, run), warn) for name in services]

    def numbers(self, step: int, numbers: Mapping[str, float]) -> None:
        """Record numbers; those that are not finite are left out, because no service takes them."""
        finite = {name: float(value) for name, value in numbers.items() if math.isfinite(value)}
        for sink in self._all():
            sink.numbers(step, finite)

    def episodes(self, step: int, episodes: Sequence[Mapping[str, Any]]) -> None:
        """Record the episodes of an evaluation as a table."""
        if not episodes:
            return
        columns, rows = episode_table(episodes)
        for sink in self._all():
            sink.episodes(step, columns, rows)

    def rewind(self, step: int) -> None:
        """Prepare for the steps after `step` to be recorded again.

        TensorBoard drops them. The services stay open, because closing one may take a minute, in
        which the run would stand still; they take the rows again.
        """
        if self._events is not None:
            self._events.close()
            self._events = TensorBoardSink(self._run_dir, step)

    def close(self) -> None:
        """Close all sinks; a service gets some time to take what is left."""
        for sink in self._all():
            sink.close()
        self._events, self._services = None, []

    def _all(self) -> list[Sink]:
        return [*([self._events] if self._events is not None else []), *self._services]


def _maker(name: SinkName, run: TrackedRun) -> Callable[[], Sink]:
    """Return the function that imports the library and opens the service, in the sink's thread."""

    def make() -> Sink:
        match name:
            case "wandb":
                from rlsys.reporting.sinks.wandb import WandbSink

                return WandbSink(run)
            case "mlflow":
                from rlsys.reporting.sinks.mlflow import MlflowSink

                return MlflowSink(run)
            case "trackio":
                from rlsys.reporting.sinks.trackio import TrackioSink

                return TrackioSink(run)
            case "tensorboard":
                return TensorBoardSink(run.run_dir)

    return make
