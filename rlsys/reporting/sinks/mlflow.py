"""MLflow. MLFLOW_TRACKING_URI names the server or store; without it, MLflow's own default holds."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rlsys.reporting.sinks.base import TrackedRun

ID_TAG: Final = "rlsys.id"
BATCH: Final = 1000
"""Most metrics that MLflow takes in one call."""
FORBIDDEN: Final = re.compile(r"[^\w\-. :/]")
"""Characters that a metric's name must not have."""


class MlflowSink:
    """Records one run with the library mlflow, without its global active run."""

    def __init__(self, run: TrackedRun) -> None:
        from mlflow.entities import Metric
        from mlflow.tracking import MlflowClient

        self._metric = Metric
        self._client = MlflowClient()
        known = self._client.get_experiment_by_name(run.project)
        experiment = known.experiment_id if known else self._client.create_experiment(run.project)
        same_id = f"tags.`{ID_TAG}` = '{run.id}'"
        if earlier := self._client.search_runs([experiment], same_id, max_results=1):
            self._id = earlier[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
            return
        made = self._client.create_run(experiment, run_name=run.name, tags={ID_TAG: run.id})
        self._id = made.info.run_id
        self._client.log_dict(self._id, dict(run.config), "config.yaml")

    def numbers(self, step: int, numbers: Mapping[str, float]) -> None:
        """Log all numbers with their step."""
        now = int(time.time() * 1000)
        metrics = [
            self._metric(FORBIDDEN.sub("_", name), value, now, step)
            for name, value in numbers.items()
        ]
        for start in range(0, len(metrics), BATCH):
            self._client.log_batch(self._id, metrics=metrics[start : start + BATCH])

    def episodes(self, step: int, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Log a table as an artifact."""
        table = {name: [row[place] for row in rows] for place, name in enumerate(columns)}
        self._client.log_table(self._id, table, f"episodes/evaluation-{step}.json")

    def close(self) -> None:
        """Mark the run as ended; a resumed run opens it again."""
        self._client.set_terminated(self._id)
