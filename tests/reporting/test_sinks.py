"""The services of reporting.sinks: what each gets, and that none of them can end a run."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from fake_trackers import install, install_mlflow, install_trackio, install_wandb
from pydantic import ValidationError
from recorded_run import episode
from rich.console import Console
from typer.testing import CliRunner

from rlsys.cli.app import app
from rlsys.config import RunConfig
from rlsys.config.reporting import ReportingConfig, SinkName
from rlsys.errors import ConfigError
from rlsys.reporting.reporter import RunReporter
from rlsys.reporting.sinks.background import BackgroundSink
from rlsys.reporting.sinks.base import episode_table, run_id

EPISODES = [episode(0, (0.0, 1.0)), episode(1, (1.0, 1.0))]


def record(run_dir: Path, sinks: Sequence[SinkName], resumed: int = 0) -> str:
    """Record one step and one evaluation after `resumed` steps; return what was shown."""
    shown = io.StringIO()
    reporting = ReportingConfig(sinks=tuple(sinks), project="tests")
    console = Console(file=shown, width=200)
    with RunReporter(run_dir, 9, console, reporting=reporting) as reporter:
        reporter.start("name: tried\nseed: 3\n", "table", resumed)
        reporter.step(resumed + 1, {"loss": 0.5, "kl": float("nan")})
        numbers = {"score/2": 0.5, "score/4": 1.0, "thought/length": 4.0}
        reporter.evaluation(resumed + 1, numbers, EPISODES)
    return shown.getvalue()


def test_wandb_gets_metrics_evaluations_and_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = install_wandb(monkeypatch)
    record(tmp_path, ["wandb"])
    record(tmp_path, ["wandb"], resumed=1)
    record(tmp_path, ["wandb"])
    first, resumed, fresh = runs
    assert first.settings["project"] == "tests" and first.settings["config"]["seed"] == 3
    assert first.metrics == [("step", None), ("*", "step")]
    metrics, evaluation, table = (row for _, row in first.rows)
    assert metrics == {"step": 1, "loss": 0.5}, "a number that is not finite is left out"
    assert evaluation["evaluation/mean"] == 0.75
    assert table["episodes"].columns[-4:] == ["answer/2", "score/2", "answer/4", "score/4"]
    assert table["episodes"].data[0][-4:] == ["0}", "0.0", "1}", "1.0"]
    assert first.finished
    assert resumed.settings["id"] == first.settings["id"] != fresh.settings["id"]
    assert not (tmp_path / "tensorboard").exists(), "it was not in the list"


def test_mlflow_gets_metrics_evaluations_and_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = install_mlflow(monkeypatch)
    record(tmp_path, ["mlflow"])
    record(tmp_path, ["mlflow"], resumed=1)
    (run,) = store.runs.values()
    assert (run["name"], run["experiment"], run["status"]) == ("tried", "tests", "FINISHED")
    assert [m for m in run["metrics"] if m[0] == "loss"] == [("loss", 0.5, 1), ("loss", 0.5, 2)]
    assert ("evaluation/mean", 0.75, 1) in run["metrics"]
    assert run["artifacts"]["config.yaml"] == {"name": "tried", "seed": 3}
    assert run["artifacts"]["episodes/evaluation-2.json"]["score/2"] == [0.0, 1.0]


def test_trackio_gets_metrics_evaluations_and_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = install_trackio(monkeypatch)
    record(tmp_path, ["trackio"])
    (run,) = runs
    assert run.settings["name"].startswith("tried-")
    assert run.rows[0] == (1, {"loss": 0.5})
    step, table = run.rows[2]
    assert step == 1 and len(table["episodes"].data) == 2
    assert run.finished


def test_a_rewound_run_stays_open_at_the_services(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = install_wandb(monkeypatch)
    reporting = ReportingConfig(sinks=("tensorboard", "wandb"))
    with RunReporter(tmp_path, 9, Console(file=io.StringIO()), reporting=reporting) as reporter:
        reporter.step(1, {"loss": 1.0})
        reporter.step(2, {"loss": 2.0})
        reporter.rewind(1)
        reporter.step(2, {"loss": 3.0})
    (run,) = runs
    assert [(row["step"], row["loss"]) for _, row in run.rows] == [(1, 1.0), (2, 2.0), (2, 3.0)]
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["loss"] for row in rows] == [1.0, 3.0]
    assert len(list((tmp_path / "tensorboard").iterdir())) == 2, "one file before, one after"


class Broken:
    """A service whose every call fails."""

    def __init__(self) -> None:
        self.calls = 0

    def numbers(self, step: int, numbers: Mapping[str, float]) -> None:
        self.calls += 1
        raise ConnectionError("no route\nto host")

    def episodes(self, step: int, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        raise ValueError("no tables today")

    def close(self) -> None:
        raise OSError("already gone")


def test_a_broken_service_is_one_warning() -> None:
    service, said = Broken(), list[str]()
    sink = BackgroundSink("wandb", lambda: service, said.append)
    for step in range(3):
        sink.numbers(step, {"loss": 1.0})
    sink.episodes(3, ["a"], [[1]])
    sink.close()
    assert service.calls == 3, "it is tried again, because it may come back"
    (warning,) = said
    assert "'wandb'" in warning and "ConnectionError: no route to host" in warning


def test_a_service_that_does_not_open_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def init(**_: Any) -> None:
        raise PermissionError("no API key")

    install(monkeypatch, "wandb", init=init, Settings=dict)
    shown = record(tmp_path, ["wandb"])
    assert shown.count("warning:") == 1 and "no API key" in shown
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2


def test_a_service_that_hangs_does_not_hold_up_the_run() -> None:
    said = list[str]()
    hanging = threading.Event()

    def make() -> Broken:
        hanging.wait(30)
        return Broken()

    sink = BackgroundSink("mlflow", make, said.append)
    for step in range(2000):
        sink.numbers(step, {"loss": 1.0})
    sink.close(seconds=0.05)
    hanging.set()
    (warning,) = said
    assert "too slow" in warning


def test_a_service_that_is_not_installed_is_refused_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlsys.reporting.sinks.opening.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'rlsys\[mlflow\]'"):
        record(tmp_path / "run", ["mlflow"])
    assert not (tmp_path / "run").exists()
    words = [f"run_dir={tmp_path / 'run'}", "reporting.sinks=[wandb]"]
    (tmp_path / "run.yaml").write_text("{}")
    result = CliRunner().invoke(app, ["train", str(tmp_path / "run.yaml"), "--dry-run", *words])
    assert (result.exit_code, "rlsys[wandb]" in result.stderr) == (2, True), result.output


def test_unknown_services_are_refused() -> None:
    with pytest.raises(ValidationError, match="wandb"):
        RunConfig.model_validate({"reporting": {"sinks": ["comet"]}})
    assert RunConfig().reporting.sinks == ("tensorboard",)


def test_the_id_lives_as_long_as_the_run(tmp_path: Path) -> None:
    first = run_id(tmp_path, resumed=False)
    assert run_id(tmp_path, resumed=True) == first
    assert run_id(tmp_path, resumed=False) != first
    (tmp_path / "tracking.json").write_text("[]")
    assert json.loads((tmp_path / "tracking.json").read_text()) == []
    assert run_id(tmp_path, resumed=True)


def test_a_table_has_the_columns_of_all_its_episodes() -> None:
    columns, rows = episode_table([{"seed": 1, "turns": [{"n": 1}]}, {"problem": "½"}])
    assert columns == ["seed", "turns", "problem"]
    assert rows == [[1, '[{"n": 1}]', None], [None, None, "½"]]
