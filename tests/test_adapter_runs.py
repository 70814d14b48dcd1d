"""Adapters through the command line: a run on pairs, and one with a real engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from commands import Command
from safetensors.numpy import load_file

from rlsys.tokenization.model_folder import resolve_model_path

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

LEARNER: dict[str, Any] = {
    "row_tokens": 256,
    "lora": {"rank": 4, "alpha": 8},
    "optimizer": {"learning_rate": 5e-3},
}


@pytest.fixture
def commands() -> Iterator[list[Command]]:
    """Whatever a test puts here is gone after it."""
    started: list[Command] = []
    yield started
    for command in started:
        command.kill_all()


def finish(commands: list[Command], run_dir: Path, name: str, settings: dict[str, Any]) -> Command:
    config = run_dir.with_suffix(".yaml")
    config.write_text(yaml.safe_dump(settings))
    commands.append(Command(run_dir, name, config))
    assert commands[-1].wait() == 0, commands[-1].output
    return commands[-1]


def check_export(export: Path) -> None:
    """The starting policy's names and shapes, other values, and the adapter beside them."""
    start = load_file(Path(resolve_model_path("tiny")) / "model.safetensors")
    merged = load_file(export / "model.safetensors")
    assert {k: v.shape for k, v in merged.items()} == {k: v.shape for k, v in start.items()}
    changed = {
        key.rsplit(".", 2)[-2] for key in merged if not np.array_equal(merged[key], start[key])
    }
    assert changed == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    adapter = json.loads((export / "adapter" / "adapter_config.json").read_text())
    assert (adapter["r"], adapter["lora_alpha"]) == (4, 8)


def test_pairs_with_adapters(commands: list[Command], tmp_path: Path) -> None:
    """The chosen answer is right, the rejected one repeats itself."""
    rows = [
        {"problem": f"{a}+{b}", "chosen": f"{a}+{b}={a + b}", "rejected": f"{a}+{b}={a + b}" * 2}
        for a in range(1, 6)
        for b in range(1, 4)
    ]
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = {
        "model": {"path": "tiny"},
        "data": {"source": "preferences", "path": [str(file)]},
        "rpo": {"beta": 0.2},
        "epochs": 6,  # of 15 pairs each, so 6 steps
        "rows_per_step": 15,
        "log_every": 1,
        "learner": LEARNER,
    }
    steps = finish(commands, tmp_path / "pairs", "sft", settings).steps()
    assert [row["step"] for row in steps] == [1, 2, 3, 4, 5, 6]
    assert steps[0]["learner/margin_mean"] == 0.0
    assert steps[0]["learner/preference_mean"] == pytest.approx(np.log(2), abs=1e-6)
    assert steps[-1]["learner/margin_mean"] > 0.1
    assert steps[-1]["learner/preferred_share"] == 1.0
    assert steps[-1]["learner/nll_mean"] < steps[0]["learner/nll_mean"]
    assert {row["learner/pairs"] for row in steps} == {15.0}
    check_export(tmp_path / "pairs" / "export")


def test_engines_serve_what_adapters_learn(commands: list[Command], tmp_path: Path) -> None:
    """Every sync's canary compares the engine's merged weights with the learner's adapters."""
    settings = {
        "steps": 3,
        "data": {
            "train": {"source": "arithmetic", "size": 32},
            "evaluation": {"source": "arithmetic", "size": 2, "held_out": True},
        },
        "environment": {
            "budgets": [8, 24],
            "answers": 2,
            "answer_tokens": 6,
            "closing": "",
            "answer_header": "\n\n**Final Answer**\n\\boxed{",
        },
        "batch": {"problems": 4, "group_size": 4},
        "loss": {"kl_coefficient": 0.05},
        "learner": LEARNER,
        "generation": {"kv_cache_mib": 32},
        "checkpoint": {"every": 0},
    }
    command = finish(commands, tmp_path / "run", "train", settings)
    steps = command.steps()
    assert max(row["gap/canary"] for row in steps) < 1e-3
    assert max(row["gap/mean"] for row in steps) < 1e-3
    assert max(row["grad_norm"] for row in steps) > 0
    assert steps[0]["learner/reference_kl_mean"] == pytest.approx(0.0, abs=1e-7)
    assert steps[-1]["learner/reference_kl_mean"] > 1e-5
    check_export(tmp_path / "run" / "export")
    (weights,) = tmp_path.glob("run/checkpoints/step-3/learner/*/*model_states.pt")
    assert (
        weights.stat().st_size
        < 0.5 * (Path(resolve_model_path("tiny")) / "model.safetensors").stat().st_size
    )
