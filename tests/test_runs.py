"""Whole runs through the command line: real Ray, vLLM and DeepSpeed on the tiny reasoner.

A start costs half a minute on two cores, so every run shows several things.
"""

from __future__ import annotations

import gzip
import json
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import yaml
from checkpoints import flip_byte
from commands import START_SECONDS, Command, started_processes, wait_until

from rlsys.assets import shipped_path
from rlsys.config.loading import load_config
from rlsys.data.problems import TaskStream, load_problems
from rlsys.launch.processes import weights_folder
from rlsys.reporting.metrics_file import METRICS, read_rows
from rlsys.serving.card import read_card
from rlsys.training.run_lock import LOCK

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

Start = Callable[..., Command]

CONFIG: dict[str, Any] = {
    "steps": 8,
    "data": {
        "train": {"source": "arithmetic", "size": 11},  # epochs end within the run
        "evaluation": {"source": "arithmetic", "size": 4, "held_out": True},
    },
    "environment": {
        "budgets": [8, 24],
        "answers": 2,
        "answer_tokens": 6,
        "closing": "",
        "answer_header": "\n\n**Final Answer**\n\\boxed{",
    },
    "batch": {"problems": 2, "group_size": 4},
    "learner": {"row_tokens": 256, "optimizer": {"learning_rate": 1e-3}},
    "generation": {"kv_cache_mib": 32},
    "checkpoint": {"every": 1},
}


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(CONFIG))
    return path


@pytest.fixture
def start(tmp_path: Path, config_file: Path) -> Iterator[Start]:
    """Starts a command on the configuration above; nothing of it outlives the test."""
    commands: list[Command] = []

    def start_one(name: str, *overrides: str, config: Path = config_file) -> Command:
        commands.append(Command(tmp_path / "run", name, config, *overrides))
        return commands[-1]

    yield start_one
    for command in commands:
        command.kill_all()


def weights(folder: Path) -> dict[str, Any]:
    from safetensors.numpy import load_file

    return dict(load_file(folder / "model.safetensors"))


def test_a_run_that_is_stopped_and_killed_goes_on_to_its_end(
    start: Start, config_file: Path
) -> None:
    stopped = start("train")
    assert wait_until((stopped.run_dir / LOCK).exists, START_SECONDS)
    second = start("train")
    assert second.wait() == 2, second.output
    assert "is in use by the run of process" in second.output
    stopped.wait_for_step(2)
    stopped.signal(signal.SIGTERM)
    assert stopped.wait(200) == 130, stopped.output
    assert stopped.all_gone(60), stopped.left()
    last = max(row["step"] for row in stopped.steps())
    assert 2 <= last < CONFIG["steps"] - 2
    assert f"stopped after step {last}; the same command goes on from there" in stopped.output

    killed = start("train")
    killed.wait_for_step(last + 1)
    killed.signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    assert killed.all_gone(30), killed.left()
    assert weights_folder(killed.run_dir).exists()  # nobody was left to remove it
    assert f"resuming after step {last} of 8" in killed.output

    *_, good, newest = checkpoint_steps(killed.run_dir)  # three, if killed before one is removed
    damaged = killed.run_dir / "checkpoints" / f"step-{newest}"
    flip_byte(next(damaged.glob("learner/*/*optim_states.pt")))
    finished = start("train")
    assert finished.wait() == 0, finished.output
    assert f"step-{newest}.damaged: learner/ranks/" in finished.output
    assert f"resuming after step {good} of 8" in finished.output
    assert re.search(r"^started in \d+ s: .*engines \d+ s \(import ", finished.output, re.MULTILINE)
    assert finished.all_gone(60), finished.left()
    assert not weights_folder(finished.run_dir).exists()
    assert [row["step"] for row in finished.steps()] == [1, 2, 3, 4, 5, 6, 7, 8]
    check_table(finished.output)
    check_folder(finished.run_dir, f"step-{newest}.damaged")
    check_problems(finished.run_dir, config_file)
    check_export(finished.run_dir / "export")

    before = {path: path.stat().st_mtime_ns for path in finished.run_dir.rglob("*")}
    again = start("train")
    assert again.wait() == 0, again.output
    assert "is finished after step 8" in again.output
    assert before == {path: path.stat().st_mtime_ns for path in finished.run_dir.rglob("*")}


def test_ctrl_c_while_the_processes_start(start: Start) -> None:
    command = start("train")
    assert wait_until(lambda: command.find("GenerationActor") != [], START_SECONDS)
    command.signal(signal.SIGINT)
    assert command.wait(200) == 130, command.output
    assert command.all_gone(60), command.left()
    assert "stopped while the processes started" in command.output


def check_table(output: str) -> None:
    rows = [re.findall(r"[-+]?\d\.\d{3}", line) for line in output.splitlines()]
    before, after, change = [row for row in rows if len(row) == 3][-3:]
    for old, new, difference in zip(before, after, change, strict=True):
        assert float(new) - float(old) == pytest.approx(float(difference), abs=2e-3)


def checkpoint_steps(run_dir: Path) -> list[int]:
    names = [path.name for path in (run_dir / "checkpoints").glob("step-*")]
    return sorted(int(name.removeprefix("step-")) for name in names)


def check_folder(run_dir: Path, damaged: str) -> None:
    assert load_config(run_dir / "config.yaml").steps == 8
    assert [p.name for p in (run_dir / "tensorboard").iterdir()]
    assert {p.name for p in (run_dir / "checkpoints").iterdir()} == {*("step-7", "step-8", damaged)}
    evaluations = [r for r in read_rows(run_dir / METRICS) if "evaluation/mean" in r]
    assert [row["step"] for row in evaluations] == [0, 8]
    assert all(row["evaluation/problems"] == 4 for row in evaluations)


def check_problems(run_dir: Path, config_file: Path) -> None:
    """The first group of every step is the one that an uninterrupted run would have trained."""
    config = load_config(config_file)
    stream = TaskStream(load_problems(config.data.train), seed=config.seed, shuffle=True)
    for step in range(1, 9):
        (line,) = (run_dir / "samples" / f"step-{step}.jsonl").read_text().splitlines()
        episode = json.loads(line)
        assert episode["group"] == 2 * (step - 1)
        assert episode["problem"] == stream.task(episode["group"]).text
        assert [a["budget"] for a in episode["answers"]] == [8, 8, 24, 24]


def check_export(folder: Path) -> None:
    """transformers loads it, every weight has moved, and it still speaks its language."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.decode(tokenizer("3+8=")["input_ids"]).endswith("3+8=")
    assert model.lm_head.weight is model.model.embed_tokens.weight
    before, after = weights(shipped_path("tiny")), weights(folder)
    assert before.keys() == after.keys()
    assert all((before[name] != after[name]).any() for name in before)
    card = read_card(folder)
    assert card.measured is not None and card.cut is not None
    assert [point.budget for point in card.measured.curve] == [8, 24]
    assert tokenizer.decode(card.cut.header_ids) == card.cut.answer_header
    assert "| 24 |" in (folder / "README.md").read_text(encoding="utf-8")


def test_learning_rate_zero_changes_nothing(start: Start) -> None:
    command = start(
        "train",
        "steps=10",
        "learner.optimizer.learning_rate=0",
        "batch.optimizer_steps=2",
        "generation.temperature=0.8",
        "loss.kl_coefficient=0.1",
        "checkpoint.every=0",
        "reporting.trace_steps=2",
        "generation.max_batched_tokens=600",
    )
    assert command.wait() == 0, command.output
    rows = command.steps()
    assert len(rows) == 10
    check_times(rows)
    check_trace(command.run_dir / "trace")
    for row in rows:
        assert row["learner/ratio_mean"] == pytest.approx(1.0, abs=1e-6)
        assert row["learner/ratio_max"] == pytest.approx(1.0, abs=1e-5)
        assert row["kl"] == pytest.approx(0.0, abs=1e-9)
        assert row["learner/reference_kl_mean"] == pytest.approx(0.0, abs=1e-9)
        assert row["learner/clip_high_share"] == row["learner/clip_low_share"] == 0.0
    gaps = np.array([[row["gap/mean"], row["gap/canary"]] for row in rows])
    assert gaps.max() < 1e-5  # far below 1e-3, and so the same in every step
    assert len(set(gaps[:, 1])) == 1
    before, after = weights(shipped_path("tiny")), weights(command.run_dir / "export")
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value)


def check_times(rows: list[dict[str, float]]) -> None:
    assert "busy/engines" not in rows[0]
    for row in rows:
        assert 0 < row["busy/learner"] < 1
        assert 0 <= row["time/grading"] < row["time/rollout"]
        assert row["time/samples"] > 0
    assert all(0 < row["busy/engines"] < 1 for row in rows[1:])


def check_trace(folder: Path) -> None:
    events = json.loads((folder / "spans.json").read_text())["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
    spans = {(names[e["pid"]], e["name"]) for e in events if e["ph"] == "b"}
    assert {
        *(("driver", f"the learner in training step {step}") for step in (2, 3)),
        *(("environment actor 0", f"group {group}") for group in (2, 3, 4, 5)),
        *(("learner rank 0", part) for part in ("pack", "old_logprobs", "gradient", "update")),
        ("engine 0", "1 samples of 24 tokens"),
    } <= spans
    assert ("driver", "the learner in training step 4") not in spans
    with gzip.open(folder / "learner-rank-0.json.gz") as file:
        operations = json.load(file)["traceEvents"]
    assert any(event.get("name") == "aten::mm" for event in operations)


def test_two_ranks_run_ahead_until_an_engine_dies_for_the_last_time(start: Start) -> None:
    command = start(
        "train",
        "steps=500",
        "learner.ranks=2",
        "learner.zero_stage=3",
        "rollout.max_staleness=1",
        "sync.bucket_mib=1",
        "checkpoint.every=100",
        "generation.restarts=0",
    )
    command.wait_for_step(4)
    engine_process(command).kill()
    assert command.wait(60) == 1, command.output
    assert command.all_gone(60), command.left()
    rows = command.steps()
    # The kill may come during a weight sync, and then no engine was left to answer the canary.
    assert max(row["gap/canary"] for row in rows if row["gap/canary"] is not None) < 1e-3
    assert max(row["gap/mean"] for row in rows if row["staleness/max"] == 0) < 1e-3
    assert {row["staleness/max"] for row in rows} == {0.0, 1.0}
    assert max(row["grad_norm"] for row in rows) > 0
    lines = [line for line in command.output.splitlines() if line.startswith("rlsys: ")]
    assert len(lines) == 1
    # The kill may come during a weight sync.
    how = "(lost the processes of vLLM|died during a weight sync)"
    assert re.match(f"rlsys: engine 0 {how}, after all 0 restarts of generation.restarts", lines[0])
    assert "Traceback" not in command.output


def engine_process(command: Command) -> psutil.Process:
    """The process of vLLM's own that the generation actor started."""
    (actor,) = command.find("GenerationActor")
    (engine,) = started_processes(actor)
    return engine


def test_supervised_training_and_the_evaluation_of_its_export(start: Start, tmp_path: Path) -> None:
    sft = tmp_path / "sft.yaml"
    learner = CONFIG["learner"]
    sft.write_text(yaml.safe_dump({"model": {"path": "tiny"}, "steps": 2, "learner": learner}))
    trained = start("sft", "rows_per_step=8", "log_every=1", config=sft)
    assert trained.wait() == 0, trained.output
    assert trained.all_gone(60), trained.left()
    assert [row["step"] for row in trained.steps()] == [1, 2]
    assert all(0 < row["learner/nll_mean"] < 1 for row in trained.steps())

    measured = start("eval", f"model.path={trained.run_dir / 'export'}")
    assert measured.wait() == 0, measured.output
    assert measured.all_gone(60), measured.left()
    (row,) = read_rows(measured.run_dir / "evaluation" / METRICS)
    assert row["evaluation/problems"] == 4
    assert re.search(r"step 0.*\d\.\d{3}", measured.output)
