"""Whole runs on two GPUs: two learner ranks at ZeRO stages 2 and 3, an engine over two cards.

python -m pytest -m gpu tests/test_gpu_layouts.py        (5 minutes; an engine starts in 90 s)
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml
from commands import Command
from tiny_run import CONFIG, ON_GPUS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two cards"),
]
SHARED_CARDS = ("learner.gpus_per_rank=0.5", "generation.gpus_per_engine=0.5")
STEPS = 6
LAYOUTS = {
    "zero-2": ("learner.zero_stage=2", "learner.ranks=2", "generation.engines=2", *SHARED_CARDS),
    "zero-3": ("learner.zero_stage=3", "learner.ranks=2", "generation.engines=2", *SHARED_CARDS),
    # The engine has both cards, so the learner is on the CPU.
    "tensor-parallel": ("generation.tensor_parallel=2", "generation.gpus_per_engine=2"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_trains(tmp_path: Path, layout: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(CONFIG))
    settings = (*ON_GPUS, *LAYOUTS[layout], f"steps={STEPS}")
    command = Command(tmp_path / "run", "train", path, *settings)
    try:
        assert command.wait(400) == 0, command.output
        rows = command.steps()
        assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
        assert "engines/restarts" not in rows[-1]  # it is there only after a restart
        # Every sync brought the weights of the step: in bfloat16 both sides differ by rounding.
        assert all(row["gap/canary"] < 0.1 for row in rows)
    finally:
        command.kill_all()
