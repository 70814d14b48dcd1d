"""Settings of `rlsys eval sets`: sets by name, grids of budgets, and sentences about faults."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlsys.config import ModelConfig
from rlsys.config.evaluation_sets import SetsConfig
from rlsys.config.loading import dump_config, load_config
from rlsys.errors import ConfigError, ModelError
from rlsys.evaluation.preparation import exported, weights_digest

SET = ["data.sets.a.source=arithmetic"]
GRID = ["environment.thought_tokens=8000"]


def load(*words: str) -> SetsConfig:
    return load_config(None, words, SetsConfig)


def test_budgets_are_a_list_or_evenly_spaced() -> None:
    cases: list[tuple[list[str], tuple[int, ...]]] = [
        (GRID, (8000,)),
        ([*GRID, "environment.budget_count=4"], (2000, 4000, 6000, 8000)),
        (["environment.thought_tokens=10", "environment.budget_count=4"], (2, 5, 8, 10)),
        (["environment.budgets=16,32"], (16, 32)),
        (["environment.budgets=16"], (16,)),
    ]
    for words, grid in cases:
        assert load(*SET, *words).environment.grid == grid, words
    paper = load(*SET, *GRID, "environment.budget_count=32").environment.grid
    assert (len(paper), paper[:2], paper[-1]) == (32, (250, 500), 8000)


def test_sets_have_names_and_values_as_they_are_meant() -> None:
    config = load(
        *GRID,
        "data.sets.aime24.source=file",
        "data.sets.aime24.path=a.jsonl,b.jsonl",
        "data.sets.aime24.samples=3.2e1",
        "data.sets.aime24.limit=none",
        "data.sets.math.source=hub",
        "data.sets.math.name=org/math",
    )
    aime, math = config.data.sets["aime24"], config.data.sets["math"]
    assert aime.model_dump(include={"path", "samples", "limit"}) == {
        "path": ("a.jsonl", "b.jsonl"),
        "samples": 32,
        "limit": None,
    }
    assert math.model_dump(include={"split", "samples"}) == {"split": "test", "samples": 1}


def test_a_dumped_configuration_loads_again(tmp_path: Path) -> None:
    config = load(*SET, *GRID)
    (tmp_path / "config.yaml").write_text(dump_config(config))
    assert load_config(tmp_path / "config.yaml", [], SetsConfig) == config


def test_a_fault_is_named_where_it_was_written() -> None:
    cases = [
        ([*SET, *GRID, "data.sets.a.samplez=3"], "did you mean 'data.sets.a.samples'"),
        ([*SET, *GRID, "data.sets.a.samples=0"], "data.sets.a.samples is 0"),
        ([*GRID, "data.sets.a.source=fil"], "data.sets.a.source is 'fil'"),
        ([*GRID, "data.sets.a.source=file"], "data.sets.a.path is missing"),
        ([*GRID, "data.sets={}"], "data.sets"),
        ([*GRID, "data.sets.average.source=arithmetic"], "'average'"),
        (SET, "environment"),
        ([*SET, "environment.budget_count=3"], "environment.thought_tokens is missing"),
        ([*SET, *GRID, "environment.budgets=16"], "no place"),
        ([*SET, "environment.budgets=32,16"], "must be increasing"),
        ([*SET, "environment.thought_tokens=3", "environment.budget_count=4"], "no room"),
    ]
    for words, reason in cases:
        with pytest.raises(ConfigError) as error:
            load(*words)
        assert reason in str(error.value), words


def test_a_run_directory_stands_for_its_export(tmp_path: Path) -> None:
    run = ModelConfig(path=str(tmp_path))
    assert exported(run) == run  # a model folder, or nothing yet
    (tmp_path / "export").mkdir()
    assert exported(run).path == str(tmp_path / "export")  # `rlsys sft` has no checkpoints
    (tmp_path / "checkpoints" / "step-40").mkdir(parents=True)
    with pytest.raises(ModelError, match="steps=40"):
        exported(run)
    (tmp_path / "finished.json").touch()
    assert exported(run).path == str(tmp_path / "export")


def test_the_digest_changes_with_the_weights(tmp_path: Path) -> None:
    assert weights_digest("org/name") == ""
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(bytes(5 << 20))
    before = weights_digest(str(tmp_path))
    assert before == weights_digest(str(tmp_path))
    weights.write_bytes(bytes(4 << 20) + b"\x01" * (1 << 20))
    assert len({before, weights_digest(str(tmp_path)), ""}) == 3
