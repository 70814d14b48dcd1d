"""Epochs become steps once the data are read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rlsys.cli.app import app
from rlsys.config import RunConfig, SftConfig
from rlsys.config.loading import load_config
from rlsys.errors import ConfigError
from rlsys.launch.epochs import run_with_steps, sft_with_steps
from rlsys.launch.supervised import load_rows

ELEVEN = ("data.train.size=11", "data.evaluation.size=4", "batch.problems=4")


def test_a_run_counts_its_problems() -> None:
    run = load_config(None, [*ELEVEN, "steps=9"], RunConfig)
    assert run_with_steps(run) is run
    run = load_config(None, [*ELEVEN, "epochs=3", "steps=9"], RunConfig)
    assert run_with_steps(run).steps == 6  # two steps of four in each epoch of eleven


def test_an_epoch_without_a_whole_step_is_refused() -> None:
    run = load_config(None, [*ELEVEN[:2], "batch.problems=12", "epochs=3"], RunConfig)
    with pytest.raises(ConfigError, match=r"11 problems, fewer than the 12 .* batch\.problems"):
        run_with_steps(run)


def test_a_supervised_run_counts_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"problem": "1", "response": "2"}) + "\n" for _ in "12345"))
    words = ["epochs=2", "rows_per_step=2", "data.source=file", f"data.path={path}"]
    config = load_config(None, words, SftConfig)
    assert sft_with_steps(config, load_rows(config)).steps == 4


def test_endless_data_have_no_epochs() -> None:
    with pytest.raises(ConfigError, match="epochs 1 needs rows from files"):
        load_config(None, ["epochs=1"], SftConfig)
    words = ["epochs=1", "environment.type=economics", "algorithm.method=turn_grpo"]
    with pytest.raises(ConfigError, match="epochs 1 needs problems of `data`"):
        load_config(None, words, RunConfig)


def test_a_dry_run_tells_the_steps(tmp_path: Path) -> None:
    config = tmp_path / "run.yaml"
    config.write_text(f"run_dir: {tmp_path / 'run'}\nepochs: 2\n")
    result = CliRunner().invoke(app, ["train", str(config), "--dry-run", *ELEVEN])
    assert (result.exit_code, "2 epochs: 4 steps" in result.stdout) == (0, True), result.output


def test_two_warm_ups_are_refused() -> None:
    words = ["learner.optimizer.warmup_steps=3", "learner.optimizer.warmup_ratio=0.1"]
    with pytest.raises(ConfigError, match=r"warmup_steps 3 and warmup_ratio 0\.1"):
        load_config(None, words, RunConfig)
