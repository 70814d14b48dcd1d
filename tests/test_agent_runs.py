"""A whole run whose episodes are played by agents: real processes, HTTP, Ray, vLLM, DeepSpeed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import Command

ROOT = Path(__file__).parents[1]

CONFIG: dict[str, Any] = {
    "steps": 2,
    "data": {
        "train": {"source": "arithmetic", "size": 64},
        "evaluation": {"source": "arithmetic", "size": 4, "held_out": True},
    },
    "environment": {
        "type": "agent",
        "agent": "some_agents:rewrites",
        "think_end": "</think>",
        "budget": 120,
        "reply_tokens": 40,
        "max_agents": 8,
    },
    "algorithm": {"method": "grpo"},
    "batch": {"problems": 2, "group_size": 4},
    "learner": {"row_tokens": 256, "optimizer": {"learning_rate": 1e-4}},
    "generation": {"kv_cache_mib": 32},
    "evaluation": {"problems": 2},
}


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_policy_is_trained_through_its_endpoint(tmp_path: Path) -> None:
    config = tmp_path / "run.yaml"
    config.write_text(yaml.safe_dump(CONFIG))
    # As for a user whose agent is a package of his own.
    paths = {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "tests" / "support")))}
    command = Command(tmp_path / "run", "train", config, variables=paths)
    try:
        assert command.wait() == 0, command.output
        assert command.all_gone(60.0), command.left()
    finally:
        command.kill_all()
    rows = command.steps()
    assert [row["step"] for row in rows] == [1, 2]
    for row in rows:
        assert row["agent/failed"] == 0
        assert (row["agent/calls"], row["agent/branches"]) == (3, 2)
        # The log-probs of the packed trees are those that the engine sampled with.
        assert row["gap/mean"] < 1e-3
    (example, *_) = map(
        json.loads, (command.run_dir / "samples" / "step-1.jsonl").read_text().splitlines()
    )
    kinds = [segment["kind"] for segment in example["segments"]]
    assert kinds == ["prompt", "answer", "observation", "answer", "prompt", "answer"]
