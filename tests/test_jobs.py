"""Jobs on a Ray cluster: submitted, followed, stopped, killed and resumed. Real head, real runs."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from commands import MARK, Command, wait_until

from rlsys.training.run_folder import last_checkpoint
from rlsys.training.run_lock import LOCK

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.timeout(900)]

BIN = Path(sys.executable).parent

CONFIG: dict[str, Any] = {
    "name": "tiny",
    "steps": 400,
    "data": {
        "train": {"source": "arithmetic", "size": 64},
        "evaluation": {"source": "arithmetic", "size": 4, "held_out": True},
    },
    "environment": {
        "budgets": [8, 64],
        "answers": 2,
        "answer_tokens": 6,
        "closing": "",
        "answer_header": "\n\n**Final Answer**\n\\boxed{",
    },
    "batch": {"problems": 4, "group_size": 4},
    "learner": {"row_tokens": 256},
    "generation": {"kv_cache_mib": 32},
}


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(server.getsockname()[1]) for server in sockets]
    for server in sockets:
        server.close()
    return ports


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The dashboard of a Ray head that wants a token, which the environment holds."""
    mark, dashboard, *others = uuid.uuid4().hex, *free_ports(5)
    # Short, because the paths of Ray's sockets may have 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="ray-"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        patch.setenv("PATH", f"{BIN}:{os.environ['PATH']}")
        options = {
            "port": others[0],
            "dashboard-port": dashboard,
            "dashboard-agent-listen-port": others[1],
            "metrics-export-port": others[2],
            "ray-client-server-port": others[3],
            "num-cpus": 4,
            "object-store-memory": 100_000_000,
            "temp-dir": folder,
            "include-dashboard": "true",
        }
        words = (f"--{name}={value}" for name, value in options.items())
        head = subprocess.Popen(
            [BIN / "ray", "start", "--head", "--block", *words],
            env={k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"} | {MARK: mark},
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            assert wait_until(lambda: answers(dashboard), 120)
            yield f"http://127.0.0.1:{dashboard}"
        finally:
            head.terminate()
            with suppress(subprocess.TimeoutExpired):
                head.wait(20)
            kill_marked(mark)
            shutil.rmtree(folder, ignore_errors=True)


def answers(port: int) -> bool:
    import requests

    headers = {"Authorization": f"Bearer {os.environ['RAY_AUTH_TOKEN']}"}
    with suppress(requests.RequestException):
        url = f"http://127.0.0.1:{port}/api/jobs/"
        return bool(requests.get(url, headers=headers, timeout=5).status_code == 200)
    return False


def kill_marked(mark: str) -> None:
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(MARK) == mark:
                process.kill()


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    checkpoint = {"every": 0, "mirror": f"file://{tmp_path}/copy"}
    path.write_text(yaml.safe_dump(CONFIG | {"checkpoint": checkpoint}))
    return path


def ray_job(address: str, *words: str) -> str:
    command = [str(BIN / "ray"), "job", words[0], "--address", address, *words[1:]]
    # Ray's client prefers RAY_ADDRESS, which is `local` in tests, to --address.
    env = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def ended(command: Command, code: int, *texts: str) -> None:
    assert command.wait() == code, command.output
    for text in texts:
        assert text in command.output


def test_a_run_goes_through_jobs_that_are_stopped_and_killed(
    address: str, config_file: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"

    def submit(*words: object) -> Command:
        return Command(run_dir, "submit", config_file, "--address", address, *words)

    # A plain job of Ray's, stopped: it writes a checkpoint.
    environment = json.dumps({"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": "300"}})
    ray_job(
        *(address, "submit", "--no-wait", "--submission-id", "plain"),
        *("--working-dir", str(tmp_path), "--runtime-env-json", environment),
        *("--", "rlsys", "train", config_file.name, f"run_dir={run_dir}"),
    )
    first = submit("--status")
    ended(first, 0, "this run has no job")
    assert wait_until(lambda: bool(first.steps()), 300), ray_job(address, "logs", "plain")
    ray_job(address, "stop", "plain")
    stopped_at = last_checkpoint(run_dir)
    assert stopped_at == first.steps()[-1]["step"] > 0

    # The same run as a job of rlsys: it resumes; a second submission does not start a second job.
    followed = submit()
    followed.wait_for_step(stopped_at + 1)
    same, other, detached = submit("--no-follow"), submit("--no-follow", "steps=500"), submit()
    ended(same, 0, "of this run is running already")
    ended(other, 2, "running with other settings")
    detached.wait_for(f"resuming after step {stopped_at} of 400")
    detached.signal(signal.SIGINT)
    ended(detached, 130, "detached; job rlsys-tiny-")
    ended(submit("--status"), 0, ": running, submitted", "step ")
    ended(submit("--stop"), 0, "has stopped", "the same command goes on from there")
    ended(followed, 130, "has stopped")
    stopped_at = last_checkpoint(run_dir)
    assert stopped_at == followed.steps()[-1]["step"]

    # The disk is lost, so the run goes on from its copy. With a retry: the driver is killed, and
    # the job goes on by itself from its last checkpoint.
    shutil.rmtree(run_dir)
    last = stopped_at + 8
    retried = submit("--retries", 1, f"steps={last}", "checkpoint.every=1")
    retried.wait_for_step(stopped_at + 2)
    os.kill(json.loads((run_dir / LOCK).read_text())["pid"], signal.SIGKILL)
    ended(retried, 0, "ended with exit code 137 and is started again", "-2 has finished")
    assert [row["step"] for row in retried.steps()] == list(range(1, last + 1))
    elsewhere = Command(tmp_path / "elsewhere", "train", config_file, f"steps={last}")
    ended(elsewhere, 0, f"is finished after step {last}")
    assert [job["status"] for job in jobs(address)] == ["STOPPED", "STOPPED", "SUCCEEDED"]


def jobs(address: str) -> list[dict[str, Any]]:
    import requests

    headers = {"Authorization": f"Bearer {os.environ['RAY_AUTH_TOKEN']}"}
    found = requests.get(f"{address}/api/jobs/", headers=headers, timeout=30).json()
    return sorted(found, key=lambda job: int(job["start_time"]))
