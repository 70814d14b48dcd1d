"""The jobs of a run: ids, exit codes and attaching, against a hand-written job server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path, PurePath
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rlsys.errors import ConfigError, RlsysError
from rlsys.launch import jobs
from rlsys.launch.jobs import Jobs, job_id
from rlsys.launch.package import Package

FIRST = "rlsys-demo-12345678"


class Client:
    """Ray's client: keeps jobs in a list. `chunks` are what each connection to a log returns."""

    def __init__(self, *found: tuple[str | None, str, int | None]) -> None:
        self.jobs = [details(*job) for job in found]
        self.chunks: list[list[str | Exception]] = []
        self.log = ""
        self.faster: Any = None

    def list_jobs(self) -> list[Any]:
        return list(self.jobs)

    def get_job_info(self, name: str) -> Any:
        if not self.jobs:
            raise OSError("no route")
        return next(job for job in self.jobs if job.submission_id == name)

    def get_job_logs(self, name: str) -> str:
        return self.log

    def submit_job(self, *, submission_id: str, **options: Any) -> str:
        if self.faster is not None:
            self.jobs.append(self.faster)
        if any(job.submission_id == submission_id for job in self.jobs):
            raise RuntimeError(f"Job with submission_id {submission_id} already exists.")
        new = details(submission_id, "PENDING", None)
        new.metadata, new.options = options["metadata"], options
        self.jobs.append(new)
        return submission_id

    async def tail_job_logs(self, name: str) -> AsyncIterator[str]:
        for chunk in self.chunks.pop(0):
            if isinstance(chunk, Exception):
                raise chunk
            yield chunk
        self.jobs[0].status, self.jobs[0].driver_exit_code = "SUCCEEDED", 0


def details(name: str | None, status: str, code: int | None, settings: str = "same") -> Any:
    return SimpleNamespace(
        submission_id=name,
        status=status,
        driver_exit_code=code,
        message="why",
        metadata={jobs.SETTINGS: settings},
        start_time=None,
    )


def of(client: Client) -> Jobs:
    return Jobs(cast(Any, client), FIRST)


def package(digest: str = "same") -> Package:
    return Package(Path("/packed"), files=1, size=10, digest=digest)


def test_the_id_follows_from_the_run_directory() -> None:
    first = job_id("demo", PurePath("/shared/runs/demo"))
    assert first == "rlsys-demo-" + first[-8:]
    assert job_id("demo", PurePath("/shared/runs/demo")) == first
    assert job_id("demo", PurePath("/shared/runs/demo2")) != first
    assert job_id("My run: 7B / β", PurePath("/r")).startswith("rlsys-my-run-7b-")
    assert job_id("β", PurePath("/r")).startswith("rlsys-run-")


def test_exit_codes_are_those_of_a_shell() -> None:
    for status, driver, expected in (
        ("PENDING", None, None),
        ("RUNNING", None, None),
        ("SUCCEEDED", 0, 0),
        ("STOPPED", None, 130),
        ("FAILED", 2, 2),
        ("FAILED", -9, 137),
        ("FAILED", None, 1),
    ):
        newest = of(Client((FIRST, status, driver))).newest()
        assert newest is not None
        assert (newest.exit_code, newest.message) == (expected, "why" if driver is None else "")


def test_the_next_job_of_a_run() -> None:
    for found, expected in (
        ([], FIRST),
        ([(None, "RUNNING", None), ("rlsys-demo-9", "RUNNING", None)], FIRST),
        ([(FIRST, "FAILED", 1)], f"{FIRST}-2"),
        ([(f"{FIRST}-10", "STOPPED", None), (f"{FIRST}-9", "SUCCEEDED", 0)], f"{FIRST}-11"),
    ):
        client = Client(*found)
        job, new = of(client).start(package(), retries=2, stop_wait_s=90)
        assert (job.id, new) == (expected, True)
    options = client.jobs[-1].options
    assert options["entrypoint"] == "exec rlsys train config.yaml --retries 2"
    assert options["runtime_env"] == {
        "working_dir": "/packed",
        "env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": "90"},
    }


def test_a_running_job_is_not_started_twice() -> None:
    client = Client((FIRST, "FAILED", 1), (f"{FIRST}-2", "RUNNING", None))
    job, new = of(client).start(package(), 0, 90)
    assert (job.id, new, len(client.jobs)) == (f"{FIRST}-2", False, 2)
    with pytest.raises(ConfigError, match=f"{FIRST}-2 .* other settings"):
        of(client).start(package("other"), 0, 90)

    at_the_same_time = Client()
    at_the_same_time.faster = details(FIRST, "PENDING", None)
    job, new = of(at_the_same_time).start(package(), 0, 90)
    assert (job.id, new, len(at_the_same_time.jobs)) == (FIRST, False, 1)


def test_a_broken_connection_repeats_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "POLL_SECONDS", 0.0)
    client = Client((FIRST, "RUNNING", None))
    client.chunks = [["one\ntw", RuntimeError("closed")], ["one\n", "two\n", "three\n"]]
    client.log = "one\ntwo\nthree\nfour\n"
    written: list[str] = []
    newest = of(client).newest()
    assert newest is not None
    ended = asyncio.run(of(client).follow(newest, written.append))
    assert ("".join(written), ended.exit_code) == (client.log, 0)


def test_a_proxy_without_websockets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "POLL_SECONDS", 0.0)
    client = Client((FIRST, "RUNNING", None))
    client.chunks = [[RuntimeError("no websocket")], [RuntimeError("no websocket")], []]
    written: list[str] = []

    def write(text: str) -> None:
        written.append(text)
        client.log += "two\n" * (len(written) == 1)

    client.log = "one\n"
    newest = of(client).newest()
    assert newest is not None
    asyncio.run(of(client).follow(newest, write))
    assert written == ["one\n", "two\n"]


def test_a_dashboard_that_stays_silent_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(jobs, "SILENT_SECONDS", 0.0)
    client = Client((FIRST, "RUNNING", None))
    newest = of(client).newest()
    assert newest is not None
    client.jobs.clear()
    with pytest.raises(RlsysError, match=f"{FIRST} may still run"):
        asyncio.run(of(client).follow(newest, lambda text: None))
