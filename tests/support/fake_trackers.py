"""The parts of wandb, mlflow and trackio that the sinks use, keeping everything in memory."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


class Table:
    def __init__(self, columns: list[str], data: list[list[Any]]) -> None:
        self.columns, self.data = columns, data


class LoggedRun:
    """A run of wandb or of trackio."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings
        self.rows: list[tuple[int | None, Mapping[str, Any]]] = []
        self.metrics: list[tuple[str, str | None]] = []
        self.finished = False

    def define_metric(self, name: str, step_metric: str | None = None) -> None:
        self.metrics.append((name, step_metric))

    def log(self, row: Mapping[str, Any], step: int | None = None) -> None:
        self.rows.append((step, row))

    def finish(self) -> None:
        self.finished = True


class MlflowStore:
    """Runs by id, as a tracking server has them; its clients come and go."""

    def __init__(self) -> None:
        self.runs: dict[str, dict[str, Any]] = {}
        self.experiments: dict[str, str] = {}

    def client(self) -> MlflowClient:
        return MlflowClient(self)


class MlflowClient:
    def __init__(self, store: MlflowStore) -> None:
        self._store = store

    def get_experiment_by_name(self, name: str) -> Any:
        key = self._store.experiments.get(name)
        return SimpleNamespace(experiment_id=key) if key else None

    def create_experiment(self, name: str) -> str:
        self._store.experiments[name] = name
        return name

    def search_runs(self, experiments: list[str], words: str, max_results: int) -> list[Any]:
        found = [
            SimpleNamespace(info=SimpleNamespace(run_id=key))
            for key, run in self._store.runs.items()
            if run["experiment"] in experiments
            and words == f"tags.`rlsys.id` = '{run['tags']['rlsys.id']}'"
        ]
        return found[:max_results]

    def create_run(self, experiment: str, run_name: str, tags: dict[str, str]) -> Any:
        key = f"run{len(self._store.runs)}"
        run = {"experiment": experiment, "name": run_name, "tags": tags, "status": "RUNNING"}
        self._store.runs[key] = {**run, "metrics": [], "artifacts": {}}
        return SimpleNamespace(info=SimpleNamespace(run_id=key))

    def update_run(self, key: str, status: str) -> None:
        self._store.runs[key]["status"] = status

    def log_batch(self, key: str, metrics: Sequence[tuple[str, float, int, int]]) -> None:
        self._store.runs[key]["metrics"] += [
            (name, value, step) for name, value, _, step in metrics
        ]

    def log_dict(self, key: str, value: dict[str, Any], file: str) -> None:
        self._store.runs[key]["artifacts"][file] = value

    def log_table(self, key: str, table: dict[str, list[Any]], file: str) -> None:
        self._store.runs[key]["artifacts"][file] = table

    def set_terminated(self, key: str) -> None:
        self._store.runs[key]["status"] = "FINISHED"


def install(monkeypatch: pytest.MonkeyPatch, name: str, **parts: Any) -> None:
    """Make `import name` return a module with `parts`; a dot in the name makes a submodule."""
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    for part, value in parts.items():
        setattr(module, part, value)
    monkeypatch.setitem(sys.modules, name, module)


def install_wandb(monkeypatch: pytest.MonkeyPatch) -> list[LoggedRun]:
    """Install a wandb, and return the list of the runs that it will have."""
    runs: list[LoggedRun] = []

    def init(**settings: Any) -> LoggedRun:
        runs.append(LoggedRun(**settings))
        return runs[-1]

    install(monkeypatch, "wandb", init=init, Settings=dict, Table=Table)
    return runs


def install_trackio(monkeypatch: pytest.MonkeyPatch) -> list[LoggedRun]:
    """Install a trackio, and return the list of the runs that it will have."""
    runs: list[LoggedRun] = []

    def init(**settings: Any) -> LoggedRun:
        runs.append(LoggedRun(**settings))
        return runs[-1]

    install(monkeypatch, "trackio", init=init, Table=Table)
    return runs


def install_mlflow(monkeypatch: pytest.MonkeyPatch) -> MlflowStore:
    """Install an mlflow, and return its store."""
    store = MlflowStore()
    install(monkeypatch, "mlflow")
    install(monkeypatch, "mlflow.entities", Metric=lambda *parts: parts)
    install(monkeypatch, "mlflow.tracking", MlflowClient=store.client)
    return store
