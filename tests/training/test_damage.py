"""Every damage of a checkpoint through the command, with one checkpoint and with two."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from checkpoints import DAMAGES, save, store
from typer.testing import CliRunner

from rlsys.cli.app import app
from rlsys.config.loading import dump_config, load_config
from rlsys.launch import training
from rlsys.training.checkpoints import Checkpoint

LAYOUT = {"dp_world_size": 2, "ds_config": {"zero_optimization": {"stage": 3}}}


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    data = {"source": "arithmetic", "size": 10}
    tree = {"steps": 6, "data": {"train": data, "evaluation": data | {"held_out": True}}}
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps that runs would go on from."""
    found: list[int] = []

    def train(_: object, reporter: Any, __: object, resumed: Checkpoint, began: float) -> bool:
        found.append(resumed.step)
        return True

    monkeypatch.setattr(training, "train", train)
    return found


@pytest.fixture(autouse=True)
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("Ray was started")

    monkeypatch.setattr(ray, "init", refuse)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of the steps 2 and 4, in which DeepSpeed's record of the layout is real."""
    folder = tmp_path_factory.mktemp("whole")
    for step in (2, 4):
        record = folder / "mp_rank_00_model_states.pt"
        torch.save(LAYOUT, record)
        save(store(folder / "checkpoints"), step, extra=record)
    return folder / "checkpoints"


def make_run(config_file: Path, whole: Path, run_dir: Path, keep: int) -> Path:
    """A run directory with the newest `keep` checkpoints."""
    config = load_config(config_file, [f"run_dir={run_dir}"])
    run_dir.mkdir()
    (run_dir / "config.yaml").write_text(dump_config(config))
    for step in (2, 4)[-keep:]:
        shutil.copytree(whole / f"step-{step}", run_dir / "checkpoints" / f"step-{step}")
    # What a kill in the middle of a save leaves.
    (run_dir / "checkpoints/.step-5.partial/learner").mkdir(parents=True)
    return run_dir / "checkpoints"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def rlsys(*words: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["train", *map(str, words)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, " ".join(result.output.split())


def test_without_damage_the_newest_is_used(
    config_file: Path, whole: Path, started: list[int], tmp_path: Path
) -> None:
    """A left-over partial folder is no checkpoint, and the next save deletes it."""
    for keep in (1, 2):
        run_dir = tmp_path / str(keep)
        folder = make_run(config_file, whole, run_dir, keep)
        code, output = rlsys(config_file, f"run_dir={run_dir}", "--dry-run")
        assert code == 0
        assert "was written by 2 ranks at ZeRO stage 3; its weights" in output
        assert "anew for 1 rank at ZeRO stage 1" in output
        assert "the run would go on after step 4 of 6" in output
        assert rlsys(config_file, f"run_dir={run_dir}")[0] == 0
        save(store(folder), 6)
        assert names(folder) == ["step-4", "step-6"]
    assert started == [4, 4]


def test_every_damage(config_file: Path, whole: Path, started: list[int], tmp_path: Path) -> None:
    for number, (damage, words) in enumerate(DAMAGES.values()):
        for keep in (1, 2):
            run_dir = tmp_path / f"{number}-{keep}"
            folder = make_run(config_file, whole, run_dir, keep)
            damage(folder / "step-4")
            before = names(folder)
            code, output = rlsys(config_file, f"run_dir={run_dir}", "--dry-run")
            assert code == (1 if keep == 1 else 0), output
            assert words in output
            assert names(folder) == before
            code, output = rlsys(config_file, f"run_dir={run_dir}")
            assert words in output
            if keep == 1:
                assert code == 1 and "is whole: step-4 (" in output and "from a backup" in output
                assert names(folder) == before
            else:
                assert code == 0 and "step-4.damaged: " in output and "on from step 2" in output
                assert names(folder) == [".step-5.partial", "step-2", "step-4.damaged"]
    assert started == [2] * len(DAMAGES)


def test_a_checkpoint_without_its_layout_is_refused_before_ray_starts(
    config_file: Path, whole: Path, tmp_path: Path
) -> None:
    """Whole by its hashes, but not written by this learner."""
    folder = make_run(config_file, whole, tmp_path / "run", keep=2)
    record = tmp_path / "mp_rank_00_model_states.pt"
    torch.save({"module": {}}, record)
    save(store(folder), 6, extra=record)
    for words in (["--dry-run"], ["steps=8"]):
        code, output = rlsys(config_file, f"run_dir={tmp_path / 'run'}", *words)
        assert code == 1
        assert "does not record its ranks and its ZeRO stage" in output
