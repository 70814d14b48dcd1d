"""Agents that never call the policy, for tests; all but one of them fail."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any

from rlsys.environments.agent.interface import Endpoint, Task


def hangs(task: Task, endpoint: Endpoint) -> float:
    """Starts a child, one that writes without end, and a daemon in a session; then none ends."""
    subprocess.Popen(["yes"])
    sleep = [sys.executable, "-c", "import time; time.sleep(10_000)"]
    subprocess.Popen(sleep)
    daemon = f"import subprocess, os; os.setsid(); subprocess.Popen({sleep!r})"
    subprocess.run([sys.executable, "-c", daemon], check=True)
    time.sleep(10_000)
    return 1.0


def kills_itself(task: Task, endpoint: Endpoint) -> float:
    os.kill(os.getpid(), 9)
    return 1.0


def returns_nothing(task: Task, endpoint: Endpoint) -> Any:
    return None


def returns_nan(task: Task, endpoint: Endpoint) -> float:
    return float("nan")


def idle(task: Task, endpoint: Endpoint) -> float:
    """Never calls the policy."""
    return 1.0
