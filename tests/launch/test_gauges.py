"""Gauges of a run on the metrics endpoint of a real local Ray, as Prometheus reads it."""

import math
import re
import time
from collections.abc import Iterator, Sequence

import pytest
import requests
from economics_server import free_port

# Ray's metrics agent starts only with the packages of ray[default].
pytest.importorskip("opentelemetry.sdk", reason="needs the packages of ray[default]")

import ray

from rlsys.launch.gauges import GaugedReporter
from rlsys.training.ledger import GroupFate

pytestmark = [pytest.mark.slow]


class Notes:
    """Remembers which calls of a reporter arrived."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def step(self, step: int, metrics: dict[str, float]) -> None:
        self.calls.append(("step", step, metrics))

    def episodes(self, step: int, episodes: list[dict[str, object]]) -> None:
        self.calls.append(("episodes", step, episodes))

    def evaluation(
        self, step: int, numbers: dict[str, float], episodes: list[dict[str, object]]
    ) -> None:
        self.calls.append(("evaluation", step, numbers, episodes))

    def fates(self, fates: Sequence[GroupFate]) -> None:
        self.calls.append(("fates", *fates))

    def rewind(self, step: int) -> None:
        self.calls.append(("rewind", step))

    def message(self, text: str) -> None:
        self.calls.append(("message", text))


@pytest.fixture
def endpoint() -> Iterator[str]:
    port = free_port()
    ray.init(address="local", num_cpus=1, include_dashboard=False, _metrics_export_port=port)
    try:
        yield f"http://127.0.0.1:{port}/metrics"
    finally:
        ray.shutdown()


def scraped(url: str, wanted: str) -> dict[tuple[str, str], float]:
    """Return the gauges of run `demo` once `wanted` is among their metrics."""
    deadline = time.monotonic() + 60
    found: dict[tuple[str, str], float] = {}
    while time.monotonic() < deadline and not any(wanted in key for key in found):
        time.sleep(1)
        try:
            text = requests.get(url, timeout=60).text
        except requests.RequestException:
            continue
        for name, labels, value in re.findall(r"^(ray_rlsys_\w+)\{(.*)\} (\S+)$", text, re.M):
            fields = dict(re.findall(r'(\w+)="([^"]*)"', labels))
            assert fields["run"] == "demo"
            found[name, fields.get("metric", "")] = float(value)
    return found


@pytest.mark.timeout(180)
def test_numbers_of_steps_and_evaluations_are_served(endpoint: str) -> None:
    notes = Notes()
    reporter = GaugedReporter(notes, "demo")
    reporter.step(1, {"loss": 0.5, "score/mean": 0.25})
    reporter.step(2, {"loss": math.nan, "score/mean": 0.75, "tokens/Größe\ud800": 3.0})
    reporter.evaluation(2, {"score/16": 0.5, "thought/length": 9.0}, [])
    reporter.episodes(2, [])
    reporter.fates([])
    reporter.message("hello")

    found = scraped(endpoint, "evaluation/thought/length")
    # Ray leaves out what is not a number: "loss" is missing, as it is null in metrics.jsonl.
    assert found == {
        ("ray_rlsys_step", ""): 2.0,
        ("ray_rlsys_metric", "score/mean"): 0.75,
        ("ray_rlsys_metric", "tokens/Gr&#246;&#223;e&#55296;"): 3.0,
        ("ray_rlsys_metric", "evaluation/16"): 0.5,
        ("ray_rlsys_metric", "evaluation/thought/length"): 9.0,
    }
    reporter.rewind(0)
    assert [call[0] for call in notes.calls] == [
        *("step", "step", "evaluation", "episodes", "fates", "message", "rewind"),
    ]
