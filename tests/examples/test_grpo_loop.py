"""The one-screen GRPO loop trains for real."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_loop_trains_two_steps() -> None:
    words = ["steps=2", "batch.problems=2", "batch.group_size=2"]
    done = subprocess.run(
        [sys.executable, "examples/grpo_loop.py", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    steps = [line for line in done.stdout.splitlines() if line.startswith("step ")]
    assert [line.split(":")[0] for line in steps] == ["step 1", "step 2"]
