"""The configurations of Countdown fit each other: a dry run of every one, without Ray."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from rlsys.cli.app import app
from rlsys.sft.tiny_model import SEARCHER, build_tiny

CONFIGS = Path(__file__).parents[2] / "configs"
GRPO = [
    "algorithm.method=grpo",
    "environment.budgets=1024",
    "environment.answers=1",
    "evaluation.budgets=128,256,512,1024",
]


@pytest.fixture(scope="module")
def searcher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The untrained model of configs/sft_countdown.yaml, which is long enough for all of them."""
    return build_tiny(tmp_path_factory.mktemp("models") / "searcher", 0, SEARCHER)


def dry_run(name: str, model: Path, folder: Path, *words: str) -> tuple[int, str]:
    settings = [f"model.path={model}", f"run_dir={folder}", "data.train.size=50"]
    command = ["train", str(CONFIGS / f"{name}.yaml"), *settings, *words, "--dry-run"]
    result = CliRunner().invoke(app, command)
    return result.exit_code, result.output


def test_a_dry_run_of_every_configuration_finds_nothing_wrong(
    searcher: Path, tmp_path: Path
) -> None:
    for name, words, held_out in (
        ("countdown", [], 512),
        ("countdown", GRPO, 512),
        ("countdown_small", [], 256),
        ("countdown_smollm2", ['environment.think_end="</think>"'], 512),
    ):
        code, output = dry_run(name, searcher, tmp_path / "run", *words)
        assert code == 0, (name, output)
        assert f"50 training and {held_out} held-out problems" in output, (name, output)


def test_another_policy_is_refused(searcher: Path, tmp_path: Path) -> None:
    code, output = dry_run("countdown", searcher, tmp_path, "grading.policy=rlsys")
    assert code == 2
    assert "data.train.source 'countdown' needs grading.policy 'countdown'" in output


def test_a_gold_that_is_no_countdown_problem_is_refused(searcher: Path, tmp_path: Path) -> None:
    file = tmp_path / "problems.jsonl"
    rows = ['{"problem": "3,4,5->17", "answer": "3,4,5->17"}', '{"problem": "1+1", "answer": "2"}']
    file.write_text("\n".join(rows))
    words = ["data.train.source=file", f"data.train.path={file}"]
    command = ["train", str(CONFIGS / "countdown.yaml"), f"model.path={searcher}", *words]
    result = CliRunner().invoke(app, [*command, f"run_dir={tmp_path / 'run'}", "--dry-run"])
    assert result.exit_code == 2
    assert "'row-1' has the answer '2'" in result.output


def test_supervised_rows_and_episodes_have_the_same_format() -> None:
    for supervised, trained in (
        ("sft_countdown", "countdown"),
        ("sft_countdown_small", "countdown_small"),
        ("sft_smollm2_countdown", "countdown_smollm2"),
    ):
        rows, run = read(supervised)["data"], read(trained)
        environment = run["environment"]
        assert rows.get("think_end") == environment.get("think_end")
        templates = [data.get("prompt", {}).get("template") for data in (rows, run["data"])]
        assert templates[0] == templates[1]
        for key in ("largest", "targets"):
            assert rows.get(key) == run["data"]["train"].get(key)
            assert rows.get(key) == run["data"]["evaluation"].get(key)
        # CountdownTraces has these two as its defaults.
        assert environment["closing"] == ""
        assert environment["answer_header"] == "\n\n**Final Answer**\n\\boxed{"


def read(name: str) -> dict[str, Any]:
    tree: dict[str, Any] = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text())
    return tree
