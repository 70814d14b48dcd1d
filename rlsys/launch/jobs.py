"""The jobs of one run on a Ray cluster: submit, follow, stop, through Ray's Job Submission SDK.

The submission id follows from the run directory: `rlsys-NAME-HASH` for the first job, and then
`rlsys-NAME-HASH-2`, `-3` and so on. Ray accepts each id once, so a run cannot be started twice.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

from rlsys.errors import ConfigError, ResourceError, RlsysError
from rlsys.launch.package import CONFIG, Package

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

SETTINGS: Final = "rlsys_settings"
"""Key of a job's metadata: the hash of its package."""
ADDRESS_VARIABLES: Final = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")
NOISY_LOGGERS: Final = ("ray.dashboard.modules.job.sdk", "ray.dashboard.modules.dashboard_sdk")
"""They print a line for every connection into the log that is followed."""
POLL_SECONDS: Final = 1.0
SILENT_SECONDS: Final = 300.0
"""How long the dashboard may be unreachable before following ends with an error."""
STOPPED: Final = 130


@dataclass(frozen=True, slots=True)
class Job:
    """One job, as it is now."""

    id: str
    status: str
    """PENDING, RUNNING, STOPPED, SUCCEEDED or FAILED."""
    exit_code: int | None
    """What `rlsys train` ended with, in the way of a shell; None while the job has not ended."""
    settings: str
    message: str
    """Why it failed, if no driver has run to its end."""
    started: float | None
    """Unix seconds."""


def job_id(name: str, run_dir: PurePath) -> str:
    """Submission id of the first job of a run.

    Example: job_id("demo", PurePath("/shared/runs/demo")) == "rlsys-demo-fe9d6a8b"
    """
    word = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40] or "run"
    return f"rlsys-{word}-{sha256(str(run_dir).encode()).hexdigest()[:8]}"


def connect(address: str | None) -> JobSubmissionClient:
    """Return a client of the cluster's dashboard.

    Args:
        address: of the dashboard (`http://HEAD:8265`) or of Ray (`HEAD:6379`, `auto`). Without it,
            RAY_API_SERVER_ADDRESS, RAY_ADDRESS, and then a cluster on this machine are tried.

    Raises:
        ResourceError: it is not reachable, refuses the token, or has no dashboard.
    """
    from ray.exceptions import RayError
    from ray.job_submission import JobSubmissionClient

    if address is not None:
        # Ray's client prefers these variables to its argument.
        for name in ADDRESS_VARIABLES:
            os.environ.pop(name, None)
    for name in NOISY_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)
    asked = address or next(filter(None, map(os.environ.get, ADDRESS_VARIABLES)), None)
    try:
        # The variable is that of the `ray job` commands: headers for a proxy, as JSON.
        headers = json.loads(os.environ.get("RAY_JOB_HEADERS") or "{}")
        return JobSubmissionClient(address, headers=headers)
    except (RayError, RuntimeError, ConnectionError, OSError, ValueError, TypeError) as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise ResourceError(
            f"no Ray dashboard answers at {asked or 'this machine'} ({reason}); give "
            "--address http://HEAD:8265 of a cluster with ray[default], and its token in "
            "RAY_AUTH_TOKEN if it wants one"
        ) from None


class Jobs:
    """The jobs of one run."""

    def __init__(self, client: JobSubmissionClient, first_id: str) -> None:
        self._client = client
        self._first_id = first_id

    def newest(self) -> Job | None:
        """Return the last job of the run on this cluster; None if there was none."""
        numbers = {self._number(job.submission_id): job for job in self._client.list_jobs()}
        numbers.pop(0, None)
        return _job(numbers[max(numbers)]) if numbers else None

    def start(self, package: Package, retries: int, stop_wait_s: int) -> tuple[Job, bool]:
        """Submit the next job of the run, unless one is pending or running.

        Args:
            package: the working directory.
            retries: how often a failed attempt is started again inside the job.
            stop_wait_s: seconds between SIGTERM and SIGKILL when the job is stopped.

        Returns:
            The job, and whether it is new.

        Raises:
            ConfigError: one is running with other settings.
        """
        last = self.newest()
        if last is None or last.exit_code is not None:
            number = 1 if last is None else self._number(last.id) + 1
            submitted = self._submit(number, package, retries, stop_wait_s)
            if submitted is not None:
                return submitted, True
            # Somebody else has submitted the same run in the meantime.
            last = self.newest()
            assert last is not None
        if last.settings != package.digest:
            raise ConfigError(
                f"job {last.id} of the same run_dir is running with other settings; give --stop "
                "and submit again to go on with these, or give another run_dir"
            )
        return last, False

    def stop(self, job: Job, stop_wait_s: float) -> Job:
        """Send SIGTERM to a job and wait until it has ended.

        Raises RlsysError if it still runs after `stop_wait_s` and a minute.
        """
        self._client.stop_job(job.id)
        end = time.monotonic() + stop_wait_s + 60
        while (now := self._look(job.id)).exit_code is None:
            if time.monotonic() > end:
                raise RlsysError(
                    f"job {job.id} still runs; look at it with `ray job logs {job.id}`"
                )
            time.sleep(POLL_SECONDS)
        return now

    def last_lines(self, job: Job, count: int) -> list[str]:
        """Return the last lines of a job's log."""
        lines: list[str] = self._client.get_job_logs(job.id).splitlines()[-count:]
        return lines

    async def follow(self, job: Job, write: Callable[[str], None]) -> Job:
        """Write a job's log from its start until the job has ended; return the ended job.

        A connection that breaks is opened again, and what was written is not repeated.

        Raises RlsysError if the dashboard cannot be reached for `SILENT_SECONDS`.
        """
        log, last_answer = _Log(write), time.monotonic()
        while True:
            try:
                job = self._look(job.id)
                if job.status == "RUNNING":
                    await self._tail(job.id, log)
                log.add(self._client.get_job_logs(job.id), 0)
                if job.exit_code is not None:
                    return job
                last_answer = time.monotonic()
            except (RuntimeError, OSError) as error:
                if time.monotonic() - last_answer > SILENT_SECONDS:
                    raise RlsysError(
                        f"the dashboard has not answered for {SILENT_SECONDS:g} s "
                        f"({' '.join(str(error).split())[:200]}); job {job.id} may still run: the "
                        "same command follows it again"
                    ) from error
            await asyncio.sleep(POLL_SECONDS)

    async def _tail(self, name: str, log: _Log) -> None:
        """Follow the log until the job ends or the connection breaks."""
        import aiohttp

        at = 0  # every connection begins at the start of the log
        # Not every proxy passes websockets on. `follow` then fetches the log as a whole.
        with suppress(aiohttp.ClientError, RuntimeError, OSError):
            async for text in self._client.tail_job_logs(name):
                log.add(text, at)
                at += len(text)

    def _submit(self, number: int, package: Package, retries: int, stop_wait_s: int) -> Job | None:
        """Submit job `number`; None if there is one with this number already."""
        name = self._first_id if number == 1 else f"{self._first_id}-{number}"
        options = f" --retries {retries}" if retries else ""
        try:
            self._client.submit_job(
                # With exec, no shell runs between Ray and rlsys: the exit code is that of rlsys.
                entrypoint=f"exec rlsys train {CONFIG}{options}",
                submission_id=name,
                runtime_env={
                    "working_dir": str(package.folder),
                    # Ray kills a job that is stopped after 3 s if this does not say otherwise.
                    "env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": str(stop_wait_s)},
                },
                metadata={SETTINGS: package.digest},
            )
        except RuntimeError as error:
            if "already exists" in str(error):
                return None
            raise RlsysError(f"job {name} was refused: {' '.join(str(error).split())}") from error
        return self._look(name)

    def _look(self, name: str) -> Job:
        return _job(self._client.get_job_info(name))

    def _number(self, name: str | None) -> int:
        """1 for the first job of the run, 2 for the second, 0 for a job of something else."""
        match = re.fullmatch(rf"{re.escape(self._first_id)}(?:-(\d+))?", name or "")
        return int(match[1] or 1) if match else 0


class _Log:
    """What was written of a log, so that no part is written twice."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._length = 0

    def add(self, text: str, at: int) -> None:
        """Write the new part of `text`, which stands at character `at` of the log."""
        new = text[max(self._length - at, 0) :]
        if new:
            self._write(new)
            self._length = at + len(text)


def _job(details: Any) -> Job:
    status = str(getattr(details.status, "value", details.status))
    return Job(
        id=details.submission_id,
        status=status,
        exit_code=_exit_code(status, details.driver_exit_code),
        settings=(details.metadata or {}).get(SETTINGS, ""),
        message=(details.message or "") if details.driver_exit_code is None else "",
        started=None if details.start_time is None else details.start_time / 1000,
    )


def _exit_code(status: str, driver: int | None) -> int | None:
    match status:
        case "SUCCEEDED":
            return 0
        case "STOPPED":
            return STOPPED
        case "FAILED":
            if driver is None:  # no driver was started, or its node is gone
                return 1
            return driver if driver >= 0 else 128 - driver
        case _:
            return None
