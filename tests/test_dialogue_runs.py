"""Whole runs on dialogues: real Ray, vLLM and DeepSpeed; the environment inside, or served."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import Command
from economics_server import Server, free_port

from rlsys.environments.economics.benchmark.results import read_results

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

Start = Callable[..., Command]

CONFIG: dict[str, Any] = {
    "steps": 2,
    "model": {"path": "tiny-economics"},
    "data": {"prompt": {"template": "{remaining}/{questions_remaining}:{problem}"}},
    "environment": {
        "type": "economics",
        "episode": {
            "problems": 3,
            "total_budget": 90,
            "corpus": {"source": "arithmetic", "terms": [2, 4]},
        },
        "evaluation_corpus": {"source": "arithmetic", "terms": [2, 4], "held_out": True},
        "reply_tokens": 60,
        "think_end": "</think>",
    },
    "algorithm": {"method": "turn_grpo"},
    "batch": {"problems": 2, "group_size": 4},
    "learner": {"row_tokens": 256, "optimizer": {"learning_rate": 1e-4}},
    "generation": {"kv_cache_mib": 32},
    "evaluation": {"problems": 4},
}
OPENENV = Path(__file__).parents[1] / "configs" / "openenv.yaml"
SERVED: dict[str, Any] = {
    "ECONOMICS_TRUSTED": "true",
    "ECONOMICS_REVEAL_TYPE": "true",
    "ECONOMICS_PROBLEMS": "3",
    "ECONOMICS_CORPUS": "{source: arithmetic, terms: [2, 4]}",
}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts training on CONFIG with other words; nothing of it outlives the test."""
    economics = tmp_path / "run.yaml"
    economics.write_text(yaml.safe_dump(CONFIG))
    commands: list[Command] = []

    def start_one(*overrides: str, config: Path = economics) -> Command:
        commands.append(Command(tmp_path / "run", "train", config, *overrides))
        return commands[-1]

    yield start_one
    for command in commands:
        command.kill_all()


def test_a_run_with_the_environment_inside_its_actors(start: Start) -> None:
    command = start()
    assert command.wait() == 0, command.output
    rows = command.steps()
    assert [row["step"] for row in rows] == [1, 2]
    assert all(row["episodes/lost"] == 0 and 0 < row["utilisation"] <= 1 for row in rows)
    # Synchronous: what was sampled is trained on by the weights that sampled it.
    assert all(row["gap/mean"] < 1e-3 for row in rows)
    before, after = (
        command.run_dir / f"samples/evaluation-{step}.jsonl" for step in (0, CONFIG["steps"])
    )
    # The same held-out seeds, so that agents of `rlsys eval economics` are paired with them.
    for path in (before, after):
        (episodes,) = read_results(path).values()
        assert [episode.seed for episode in episodes] == [0, 1, 2, 3]
        assert all(episode.spent <= 90 for episode in episodes)


@pytest.mark.chaos
def test_a_server_that_dies_loses_episodes_and_not_the_run(start: Start) -> None:
    port = free_port()
    server = Server(port=port, **SERVED)
    try:
        command = start(f"environment.url=http://127.0.0.1:{port}", "steps=6")
        command.wait_for_step(1)
        server.process.kill()
        server.process.wait()
        server = Server(port=port, **SERVED)
        assert command.wait() == 0, command.output
    finally:
        server.stop()
    rows = command.steps()
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert all(row["utilisation"] <= 1 for row in rows)  # books were settled over the wire too


def test_other_peoples_environment_is_trained_on(start: Start, tmp_path: Path) -> None:
    # The scaffold that OpenEnv writes for an environment: it echoes, and never ends.
    openenv = [sys.executable, "-m", "openenv.cli", "init", "parrot", "-o", str(tmp_path)]
    subprocess.run(openenv, check=True, capture_output=True)
    server = Server(folder=tmp_path / "parrot")
    try:
        urls = (f"environment.{key}={server.url}" for key in ("url", "evaluation_url"))
        command = start(*urls, "steps=1", "evaluation.problems=1", config=OPENENV)
        assert command.wait() == 0, command.output
    finally:
        server.stop()
    (row,) = command.steps()
    assert row["reply/length"] <= 8
    assert "accuracy" in row
