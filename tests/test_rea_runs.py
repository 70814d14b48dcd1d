"""REA-RL through the command line: the tiny reflection model that ships is used, and killed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import START_SECONDS, Command, wait_until

from rlsys.reporting.metrics_file import METRICS, read_rows

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

CONFIG: dict[str, Any] = {
    "steps": 2,
    "data": {
        "train": {"source": "arithmetic", "difficulty": [6, 6], "size": 100},
        "evaluation": {
            "source": "arithmetic",
            "difficulty": [6, 6],
            "size": 4,
            "held_out": True,
        },
        "prompt": {"max_tokens": 32},
    },
    "environment": {
        "type": "reflection",
        "budget": 64,
        "answer_tokens": 6,
        "closing": "",
        "answer_header": "\n\n**Final Answer**\n\\boxed{",
        "reflections": {"mode": "words", "words": ["?"], "gap": 0},
        "revision": {
            "model": {"path": "tiny-reflection", "max_length": 512},
            "generation": {"kv_cache_mib": 32},
            "detector": {"layout": "compact", "chunking": {"separator": "(?=[;?])", "most": 1}},
            "strength": "first",
        },
    },
    "algorithm": {"method": "rea", "reflection": {"tokens_per_reflection": 40}},
    "loss": {"aggregation": "token_mean"},
    "batch": {"problems": 4, "group_size": 4},
    "learner": {"row_tokens": 256},
    "generation": {"kv_cache_mib": 32},
    "evaluation": {"budgets": [24, 64]},
}
Start = Callable[..., Command]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts `rlsys train` on the configuration above; nothing of it outlives the test."""
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(CONFIG))
    commands: list[Command] = []

    def start_one(*overrides: str) -> Command:
        commands.append(Command(tmp_path / "run", "train", file, *overrides))
        return commands[-1]

    yield start_one
    for command in commands:
        command.kill_all()


def test_originals_and_revisions_are_grown_and_trained(start: Start) -> None:
    command = start()
    assert command.wait() == 0, command.output
    assert command.all_gone(60), command.left()
    assert "Traceback" not in command.output
    rows = command.steps()
    assert len(rows) == 2
    for row in rows:
        assert row["reflection_model/read"] > 0.8
        assert row["reflection_model/failed"] == 0
        assert row["revision/share"] == row["reflection_model/read"]
        assert row["revision/thought/length"] < row["thought/length"]
        # Thought and revision are asked of one engine: what is kept is computed once.
        assert row["prefix_cache/revisions"] >= 0.9
        assert 0 < row["revision/time_share"] < 1
        assert row["gap/mean"] < 1e-3
        assert row["learner/ratio_mean"] == pytest.approx(1.0, abs=1e-6)
    assert max(row["grad_norm"] for row in rows) > 0
    (line,) = (command.run_dir / "samples" / "step-1.jsonl").read_text().splitlines()
    assert {"thought", "original"} < json.loads(line).keys()
    evaluations = [r for r in read_rows(command.run_dir / METRICS) if "evaluation/mean" in r]
    assert evaluations[0]["evaluation/token_ratio"] == 100
    assert {
        "evaluation/24",
        "evaluation/cut/24",
        "evaluation/cut/64",
        "evaluation/reflections/per_token/difficulty_6",
    } < evaluations[-1].keys()


@pytest.mark.chaos
def test_a_run_outlives_its_reflection_engines(start: Start) -> None:
    """Killed once they are started again, killed twice there are originals only."""
    command = start(
        "steps=60",
        "rollout.max_staleness=1",
        "environment.revision.restarts=1",
        "environment.revision.timeout_s=5",
        "environment.originals=free",
        "loss.importance=none",
        "evaluation.top_p=0.9",
        "evaluation.problems=1",
        "checkpoint.every=0",
    )
    command.wait_for_step(1)
    kill_reflection_engine(command)
    assert wait_until(lambda: came(command, "reflection_model/failed", 0), 60), command.output
    lost = command.steps()[-1]["step"]
    assert wait_until(lambda: came(command, "reflection_model/read", lost), START_SECONDS), (
        command.output
    )
    kill_reflection_engine(command)
    assert command.wait() == 0, command.output
    assert command.all_gone(60), command.left()
    rows = command.steps()
    assert [row["step"] for row in rows] == list(range(1, 61))
    assert rows[-1]["reflection_model/failed"] == 1
    assert rows[-1]["revision/share"] == 0
    assert all(row["accuracy/original"] >= 0 for row in rows)  # nothing was lost
    assert (command.run_dir / "export").is_dir()


def came(command: Command, metric: str, after: int) -> bool:
    return any(row[metric] > 0 for row in command.steps() if row["step"] > after)


def kill_reflection_engine(command: Command) -> None:
    (process,) = command.find("ReflectionActor")
    process.kill()
