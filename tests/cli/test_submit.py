"""`rlsys submit` before it talks to a cluster, and what it prints about a job."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from rlsys.cli.app import app
from rlsys.launch import jobs
from rlsys.launch.jobs import Job

CONFIG: dict[str, Any] = {
    "name": "demo",
    "run_dir": "/shared/demo",
    "data": {"train": {"source": "arithmetic", "size": 8}},
    "environment": {"budgets": [8, 64], "answer_tokens": 6, "closing": ""},
}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str]]:
    """Runs `rlsys submit`; returns exit code and output."""
    (tmp_path / "demo.yaml").write_text(yaml.safe_dump(CONFIG))
    monkeypatch.chdir(tmp_path)

    def run_one(*words: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["submit", "demo.yaml", *words])
        return result.exit_code, result.output

    return run_one


class Cluster:
    """In the place of Jobs: one job in some state."""

    def __init__(self, job: Job | None, ended: Job | BaseException | None = None) -> None:
        self.job, self.ended = job, ended
        self.packed: list[str] = []
        self.waits: list[float] = []

    def newest(self) -> Job | None:
        return self.job

    def start(self, package: Any, retries: int, stop_wait_s: int) -> tuple[Job, bool]:
        self.packed = sorted(path.name for path in package.folder.iterdir())
        self.waits.append(stop_wait_s)
        new = self.job is None
        self.job = self.job or job("PENDING")
        return self.job, new

    async def follow(self, job: Job, write: Callable[[str], None]) -> Job:
        write("step 1/3\n")
        if isinstance(self.ended, BaseException):
            raise self.ended
        assert self.ended is not None
        return self.ended

    def stop(self, job: Job, stop_wait_s: float) -> Job:
        self.waits.append(stop_wait_s)
        return job

    def last_lines(self, job: Job, count: int) -> list[str]:
        return ["stopped after step 7"]


def job(status: str, code: int | None = None, message: str = "") -> Job:
    return Job("rlsys-demo-1", status, code, "", message, started=1.0)


def test_wrong_input_is_refused_before_anything_is_sent(
    run: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect(address: str | None) -> None:
        raise AssertionError("the cluster must not be asked")

    monkeypatch.setattr(jobs, "connect", connect)
    for words, expected in (
        (["run_dir=runs/demo"], "run_dir=/shared/runs/demo"),
        (["steps=x"], "steps is 'x'"),
        (["model.path=./none"], "model folder './none' does not exist"),
        (["data.train.source=file", "data.train.path=none.jsonl"], "none.jsonl"),
        (["batch.problems=1", "learner.ranks=99"], "learner.ranks 99 is more than"),
    ):
        code, output = run(*words)
        assert (code, expected in output) == (2, True), output


def test_a_cluster_that_does_not_answer(run: Callable[..., tuple[int, str]]) -> None:
    code, output = run("--address", "http://127.0.0.1:1")
    assert code == 2
    assert "no Ray dashboard answers at http://127.0.0.1:1" in output


def test_what_is_printed_about_a_job(
    run: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    running, failed = job("RUNNING"), job("FAILED", 1, "the node is gone\nmore")
    for words, cluster, code, expected in (
        ([], Cluster(None, job("SUCCEEDED", 0)), 0, "is submitted with a working directory"),
        ([], Cluster(None, job("SUCCEEDED", 0)), 0, "step 1/3\njob rlsys-demo-1 has finished"),
        ([], Cluster(running, job("FAILED", 137)), 137, "has failed with exit code 137"),
        ([], Cluster(None, failed), 1, "rlsys: the node is gone\n"),
        ([], Cluster(running, job("STOPPED", 130)), 130, "job rlsys-demo-1 has stopped"),
        ([], Cluster(running, KeyboardInterrupt()), 130, "detached; job rlsys-demo-1 goes on"),
        (["--no-follow"], Cluster(running), 0, "of this run is running already"),
        (["model.path=/none/here"], Cluster(running, job("SUCCEEDED", 0)), 0, "/none/here is not"),
        (["--status"], Cluster(None), 0, "this run has no job"),
        (["--status"], Cluster(failed), 0, "rlsys-demo-1: failed, exit code 1, submitted"),
        (["--stop"], Cluster(failed), 0, "this run has no running job"),
        (["--stop"], Cluster(running), 0, "  stopped after step 7"),
    ):
        monkeypatch.setattr(jobs, "connect", lambda address: None)
        monkeypatch.setattr(jobs, "Jobs", lambda client, first_id, of=cluster: of)
        found, output = run(*words)
        assert (found, expected in output) == (code, True), output
        assert set(cluster.waits) <= {1800}
        assert cluster.packed in ([], ["config.yaml"])
