"""What every test runs under, and every process that a test starts."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

HERE = Path(__file__).parent

# Under nohup this signal is ignored, and every process that a test starts would ignore it too.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Set on import: some of these are read when torch, ray or vLLM are imported.
os.environ.update(
    RAY_ADDRESS="local",  # never a cluster that happens to be there
    RAY_USAGE_STATS_ENABLED="0",
    RAY_worker_niceness="0",  # Ray's 15 lets anything else on the machine starve a test
    HF_HUB_OFFLINE="1",
    OMP_NUM_THREADS="1",  # spinning OpenMP threads on shared cores slow small models 20-fold
    DS_ACCELERATOR="cpu",
    VLLM_NO_USAGE_STATS="1",
)


LEFT_OUT = {
    "chaos": "the longer faults of whole runs (make chaos)",
    "cluster": "clusters of several nodes, and jobs (make test-cluster)",
    "long": "further models and settings of whole runs (make test-long)",
}
"""Marks of the tests that the gate leaves out; the option of the same name runs them."""


def pytest_addoption(parser: pytest.Parser) -> None:
    for mark, tests in LEFT_OUT.items():
        parser.addoption(f"--{mark}", action="store_true", help=f"run {tests}")


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark, tests in LEFT_OUT.items():
        if item.get_closest_marker(mark) and not item.config.getoption(f"--{mark}"):
            pytest.skip(tests)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first, beside each other in two processes: quick files fill the end.

    The longest are whole runs, which lie at the top of tests/; then come others with slow tests.
    """
    slow_files = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (item.path not in slow_files, item.path.parent != HERE))
