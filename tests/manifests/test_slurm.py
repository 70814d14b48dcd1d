"""The SLURM script starts a real Ray of two nodes; srun, scontrol and rlsys are fakes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "cluster" / "slurm" / "train.sbatch"

pytestmark = [pytest.mark.slow]

SRUN = """#!/usr/bin/env bash
while [[ $1 == --* ]]; do shift; done       # options of srun; the rest is the command
[[ $1 == hostname ]] && exec echo 127.0.0.1
exec "$@"
"""
SCONTROL = """#!/usr/bin/env bash
case $1 in
    show) printf 'one\\ntwo\\n' ;;
    requeue) echo "$2" > "$RECORD/requeued" ;;
esac
"""
RLSYS = """#!{python}
import os, pathlib, signal, sys, time
import ray
record = pathlib.Path(os.environ["RECORD"])
def stop(*_):
    time.sleep(1)
    sys.exit(130)
ray.init(log_to_driver=False)
signal.signal(signal.SIGTERM, stop)
alive = sum(node["Alive"] for node in ray.nodes())
(record / "driver").write_text(" ".join([str(alive), *sys.argv[1:]]))
time.sleep(120)
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    fakes = tmp_path / "bin"
    fakes.mkdir()
    for name, text in {"srun": SRUN, "scontrol": SCONTROL, "rlsys": RLSYS}.items():
        (fakes / name).write_text(text.replace("{python}", sys.executable))
        (fakes / name).chmod(0o755)
    environ = {k: v for k, v in os.environ.items() if not k.startswith("RAY_ADDRESS")} | {
        "PATH": f"{fakes}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "RECORD": str(tmp_path),
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_JOB_NODELIST": "one,two",
        "SLURM_CPUS_PER_TASK": "1",
    }
    command = ["bash", str(SCRIPT), "configs/demo.yaml", "run_dir=/shared/runs/demo"]
    process = subprocess.Popen(command, env=environ, text=True, start_new_session=True)
    try:
        yield process
    finally:
        # A first, gentle signal: `ray start` then ends the processes that it has detached.
        for sign in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, sign)
                time.sleep(5)
        process.wait()


@pytest.mark.timeout(300)
def test_a_signal_stops_the_run_and_puts_the_job_back(
    job: subprocess.Popen[str], tmp_path: Path
) -> None:
    deadline = time.monotonic() + 200
    while not (tmp_path / "driver").exists() and time.monotonic() < deadline:
        assert job.poll() is None
        time.sleep(0.5)
    started = (tmp_path / "driver").read_text()
    assert started == "2 train configs/demo.yaml run_dir=/shared/runs/demo"
    os.kill(job.pid, signal.SIGTERM)  # as --signal=B:TERM@600 and scancel --batch do
    assert job.wait(timeout=60) == 130
    assert (tmp_path / "requeued").read_text().strip() == str(os.getpid())
