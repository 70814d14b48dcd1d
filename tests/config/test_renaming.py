"""Renamed keys: a user is told the new name, and what an older run recorded is translated."""

from pathlib import Path

import pytest

from rlsys.config import AnytimeConfig, LearnerConfig, RunConfig, SftConfig, renaming
from rlsys.config.explain import field_at
from rlsys.config.loading import load_config, load_recorded
from rlsys.config.reflection import ReflectionConfig
from rlsys.config.renaming import RENAMED as SHIPPED
from rlsys.errors import ConfigError
from rlsys.training.run_folder import check_resume

TABLE = {
    "learner.rows": "learner.row_tokens",
    "batch.optimiser": "learner.optimizer",
    "environment.size": "environment.budgets",
    "nothing.old": "nothing.new",
    "steps": "seed",
}


@pytest.fixture(autouse=True)
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(renaming, "RENAMED", TABLE)


def refusal(*words: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(Path("run.yaml"), words)
    return str(caught.value)


def test_a_user_is_told_the_new_name() -> None:
    Path("run.yaml").write_text("learner: {rows: 512}\n")
    assert refusal() == (
        "the key 'learner.rows' in run.yaml is now called 'learner.row_tokens'; write it so"
    )
    Path("run.yaml").write_text("steps: 3\n")
    assert "'batch.optimiser' on the command line is now" in refusal(
        "batch.optimiser.learning_rate=1e-3"
    )
    both = refusal("learner.rows=3", "batch.optimiser={}").splitlines()
    assert ["learner.row_tokens" in both[0], "learner.optimizer" in both[1]] == [True, True]


def test_a_key_that_the_schema_still_has_is_not_renamed() -> None:
    Path("run.yaml").write_text("steps: 3\n")
    assert load_config(Path("run.yaml")).steps == 3
    assert load_config(Path("run.yaml"), [], SftConfig).steps == 3


def test_recorded_configurations_are_translated_with_all_that_is_inside() -> None:
    Path("config.yaml").write_text(
        "learner: {rows: 512}\nbatch: {problems: 4, optimiser: {learning_rate: 1e-3}}\n"
        "environment:\n  size: 16,32\n"
    )
    config = load_recorded(Path("config.yaml"))
    assert config.learner == LearnerConfig.model_validate(
        {"row_tokens": 512, "optimizer": {"learning_rate": 1e-3}}
    )
    assert config.batch.problems == 4
    assert config.environment == AnytimeConfig(budgets=(16, 32))


def test_an_older_run_is_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlsys.training.run_folder.last_checkpoint", lambda folder: 3)
    Path("run").mkdir()
    Path("run/config.yaml").write_text(
        "run_dir: run\nenvironment: {size: [16, 32]}\ncheckpoint: {}\n"
    )
    check_resume(
        RunConfig.model_validate(
            {"run_dir": "run", "environment": {"type": "anytime", "budgets": [16, 32]}}
        )
    )
    with pytest.raises(ConfigError, match="budgets"):
        check_resume(RunConfig(run_dir=Path("run")))


def test_shipped_entries_lead_from_a_key_that_is_gone_to_one_that_is_there() -> None:
    for old, new in SHIPPED.items():
        schema = RunConfig if "." in old else ReflectionConfig
        found = [field_at(schema, tuple(key.split("."))) for key in (old, new)]
        assert [field is None for field in found] == [True, False], old
