"""`rlsys submit`: `rlsys train` as a job on a Ray cluster (rlsys.launch.jobs)."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlsys.cli.common import STOPPED, ConfigFile, Overrides, sentences

if TYPE_CHECKING:
    from rlsys.config import RunConfig
    from rlsys.launch.jobs import Job, Jobs

Address = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="The cluster: http://HEAD:8265, or an address of Ray. Without it, "
        "RAY_API_SERVER_ADDRESS, RAY_ADDRESS, then the cluster on this machine.",
    ),
]
Follow = Annotated[
    bool, typer.Option("--follow/--no-follow", help="Print the log until the job ends.")
]
Retries = Annotated[
    int,
    typer.Option(
        min=0, help="Start a failed run again so often; each attempt goes on from a checkpoint."
    ),
]
Status = Annotated[bool, typer.Option("--status", help="Show the run's newest job, then exit.")]
Stop = Annotated[
    bool, typer.Option("--stop", help="Let the run's job write a checkpoint and end, then exit.")
]


def submit(
    config_file: ConfigFile,
    overrides: Overrides = None,
    address: Address = None,
    follow: Follow = True,
    retries: Retries = 0,
    status: Status = False,
    stop: Stop = False,
) -> None:
    """Train on a Ray cluster, or follow the job that already does; Ctrl-C only detaches.

    The exit code is that of the job.
    """
    with sentences():
        from rlsys.config.loading import load_config
        from rlsys.errors import ConfigError

        config = load_config(config_file, overrides or [])
        if not config.run_dir.is_absolute():
            raise ConfigError(
                f"run_dir {str(config.run_dir)!r} is relative, and the folder in which a job runs "
                "is deleted after it; give an absolute path that all nodes can reach, for instance "
                f"run_dir=/shared/{config.run_dir}"
            )
        if status or stop:
            jobs = _jobs(config, address)
            _show(jobs) if status else _stop(jobs, config)
            return
        _check(config)
        jobs = _jobs(config, address)
        job = _start(jobs, config, retries)
        if follow:
            raise typer.Exit(_follow(jobs, job))


def _jobs(config: RunConfig, address: str | None) -> Jobs:
    from rlsys.launch.jobs import Jobs, connect, job_id

    return Jobs(connect(address), job_id(config.name, config.run_dir))


def _check(config: RunConfig) -> None:
    """Raise the errors of `rlsys train --dry-run`, as far as this machine can see the inputs.

    Not checked are the run directory and the GPUs, which are those of the cluster.
    """
    from rlsys.launch.inputs import check_inputs
    from rlsys.launch.package import missing_here
    from rlsys.reporting.metrics_file import read_reference
    from rlsys.training.run_folder import check_resume

    check_resume(config)
    missing = list(missing_here(config))
    if missing:
        typer.echo(
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not on this machine, so "
            "model and data are checked by the job"
        )
        return
    read_reference(config.evaluation.reference)
    typer.echo(check_inputs(config).summary)


def _start(jobs: Jobs, config: RunConfig, retries: int) -> Job:
    from rlsys.launch.package import mib, packed

    with packed(config, Path.cwd()) as package:
        job, new = jobs.start(package, retries, _stop_wait_s(config))
    if new:
        size = f"{mib(package.size)} (files: {package.files})"
        typer.echo(f"job {job.id} is submitted with a working directory of {size}")
    else:
        typer.echo(f"job {job.id} of this run is {job.status.lower()} already")
    typer.echo(_remedies())
    return job


def _stop_wait_s(config: RunConfig) -> int:
    """Seconds that a stopped job gets: one that moves nothing for so long has failed anyway."""
    return round(config.watchdog.progress_s)


def _remedies() -> str:
    return "the same command follows it, with --status shows it, and with --stop ends it"


def _follow(jobs: Jobs, job: Job) -> int:
    """Print the job's log and return its exit code."""

    def write(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    try:
        ended = asyncio.run(jobs.follow(job, write))
    except KeyboardInterrupt:
        typer.echo(f"\ndetached; job {job.id} goes on: {_remedies()}")
        return STOPPED
    assert ended.exit_code is not None
    code = "" if ended.exit_code in (0, STOPPED) else f" with exit code {ended.exit_code}"
    typer.echo(f"job {ended.id} has {_ENDS[ended.status]}{code}")
    if ended.status == "FAILED" and ended.message:
        typer.echo(f"rlsys: {ended.message.splitlines()[0]}", err=True)
    return ended.exit_code


_ENDS = {"SUCCEEDED": "finished", "STOPPED": "stopped", "FAILED": "failed"}


def _show(jobs: Jobs) -> None:
    job = jobs.newest()
    if job is None:
        typer.echo("this run has no job on the cluster")
        return
    started = job.started and time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(job.started))
    code = "" if job.exit_code is None else f", exit code {job.exit_code}"
    typer.echo(f"{job.id}: {job.status.lower()}{code}, submitted {started or 'at an unknown time'}")
    for line in jobs.last_lines(job, 3):
        typer.echo(f"  {line}")


def _stop(jobs: Jobs, config: RunConfig) -> None:
    job = jobs.newest()
    if job is None or job.exit_code is not None:
        typer.echo("this run has no running job on the cluster")
        return
    wait_s = _stop_wait_s(config)
    typer.echo(f"job {job.id} gets up to {wait_s} s to finish its step and write a checkpoint")
    jobs.stop(job, wait_s)
    typer.echo(f"job {job.id} has stopped; the last lines of its log:")
    for line in jobs.last_lines(job, 3):
        typer.echo(f"  {line}")
