"""Step metrics as gauges of Ray, which every node's metrics endpoint serves to Prometheus.

One gauge with the name of the metric as a label takes every name, also those of a user's own
environment: `ray_rlsys_metric{run="demo", metric="score/mean"}`. `ray_rlsys_step` is the last
step. Without the packages of ray[default] there is no endpoint, and the gauges do nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ray.util.metrics import Gauge

from rlsys.reporting.metrics_file import EVALUATION
from rlsys.training.ledger import GroupFate
from rlsys.training.protocols import Reporter


class GaugedReporter:
    """A reporter that also shows the numbers of steps and evaluations as gauges."""

    def __init__(self, reporter: Reporter, run: str) -> None:
        """Everything goes to `reporter` as well. `run` is the label of this run. Ray must run."""
        self._reporter = reporter
        self._metric = Gauge(
            "rlsys_metric", "A number of metrics.jsonl, of the last step.", ("run", "metric")
        )
        self._step = Gauge("rlsys_step", "Training steps that are done.", ("run",))
        self._run = _ascii(run)

    def step(self, step: int, metrics: dict[str, float]) -> None:
        """Record the metrics of training step `step` (1-based)."""
        self._reporter.step(step, metrics)
        self._show(step, metrics)

    def evaluation(
        self, step: int, numbers: dict[str, float], episodes: list[dict[str, object]]
    ) -> None:
        """Record an evaluation. Its gauges have the names of the rows in metrics.jsonl."""
        self._reporter.evaluation(step, numbers, episodes)
        self._show(step, {f"{EVALUATION}{n.removeprefix('score/')}": v for n, v in numbers.items()})

    def episodes(self, step: int, episodes: list[dict[str, object]]) -> None:
        """Record readable episodes of training step `step`."""
        self._reporter.episodes(step, episodes)

    def fates(self, fates: Sequence[GroupFate]) -> None:
        """Record what became of groups."""
        self._reporter.fates(fates)

    def rewind(self, step: int) -> None:
        """Drop what is recorded of the steps after `step`: they are trained again."""
        self._reporter.rewind(step)
        self._show(step, {})

    def message(self, text: str) -> None:
        """Show a sentence to the user."""
        self._reporter.message(text)

    def _show(self, step: int, numbers: Mapping[str, float]) -> None:
        self._step.set(float(step), {"run": self._run})
        for name, value in numbers.items():
            self._metric.set(float(value), {"run": self._run, "metric": _ascii(name)})


def _ascii(text: str) -> str:
    """Return `text` with other characters as `&#233;`: Ray raises an error for them in labels."""
    return text.encode("ascii", "xmlcharrefreplace").decode()
