"""A disk of 20 MiB that becomes full at every file of a run: one sentence, and the run goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from checkpoints import Learner, store
from disks import disk, fill, make_read_only, make_room
from typer.testing import CliRunner

from rlsys.cli.app import app
from rlsys.errors import CheckpointError, DiskError
from rlsys.launch import training
from rlsys.sft.tiny_model import build_tiny
from rlsys.training.checkpoints import CheckpointStore
from rlsys.training.durable import naming
from rlsys.training.ledger import GroupFate
from rlsys.training.run_folder import mark_finished
from rlsys.training.run_lock import LOCK, run_lock

MANY = {f"metric/{number}": 1.0 for number in range(400)}
"""More than the rest of a page, which a full disk still takes."""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with disk(tmp_path / "disk", "20m") as path:
        yield path


@pytest.fixture
def config_file(tmp_path: Path, small_disk: Path) -> Path:
    data = {"source": "arithmetic", "size": 10}
    tree = {
        "steps": 4,
        "run_dir": str(small_disk / "run"),
        "data": {"train": data, "evaluation": data | {"held_out": True}},
    }
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


def write_checkpoint(_: Any, checkpoints: CheckpointStore) -> None:
    asyncio.run(checkpoints.save(2, Learner(size=100_000), {}, 0))  # type: ignore[arg-type]


FATE = GroupFate(
    step=2,
    group=8,
    problem="p" * 9000,
    fate="trained",
    reason=None,
    sampled=(1, 1),
    tokens=3,
    length=1.0,
    score=0.5,
    admitted=12,
)

WRITERS: dict[str, Callable[[Any, CheckpointStore], object]] = {
    "config.yaml": lambda reporter, _: reporter.step(2, MANY),
    "metrics.jsonl": lambda reporter, _: reporter.step(2, MANY),
    "tensorboard": lambda reporter, _: reporter.step(2, {"loss": 1.0}),
    "samples/step-2.jsonl": lambda reporter, _: reporter.episodes(2, [{"text": "a" * 9000}]),
    "ledger.jsonl": lambda reporter, _: reporter.fates([FATE]),
    "checkpoint of step 2": write_checkpoint,
    "finished.json": lambda reporter, _: mark_finished(reporter._run_dir, 4),
}


def test_every_file_is_named_and_the_run_goes_on(
    config_file: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = small_disk / "run"
    for file, write in WRITERS.items():

        def train(
            _: object,
            reporter: Any,
            checkpoints: CheckpointStore,
            resumed: Any,
            began: float,
            file: str = file,
            write: Callable[..., object] = write,
        ) -> bool:
            (run_dir / "export").mkdir(parents=True, exist_ok=True)
            if file == "config.yaml":
                (run_dir / file).unlink(missing_ok=True)
            else:
                reporter.step(1, {"loss": 1.0})
            fill(small_disk)
            write(reporter, checkpoints)
            raise AssertionError(f"{file} was written to a full disk")

        monkeypatch.setattr(training, "train", train)
        result = CliRunner().invoke(app, ["train", str(config_file)])
        assert result.exit_code == 1, (file, result.output)
        (sentence,) = result.stderr.splitlines()
        assert sentence.startswith("rlsys: the disk"), sentence
        assert file in sentence and " full" in sentence, sentence
        assert not (run_dir / LOCK).exists()
        assert not list(run_dir.rglob("*.partial")) and not list(run_dir.rglob("*.tmp")), file
        make_room(small_disk)

        def train_on(
            _: object,
            reporter: Any,
            checkpoints: CheckpointStore,
            resumed: Any,
            began: float,
            write: Callable[..., object] = write,
        ) -> bool:
            write(reporter, checkpoints)
            (run_dir / "finished.json").unlink(missing_ok=True)
            return True

        monkeypatch.setattr(training, "train", train_on)
        result = CliRunner().invoke(app, ["train", str(config_file)])
        assert result.exit_code == 0, (file, result.output)


def test_a_lock_that_does_not_fit_is_not_left_behind(small_disk: Path) -> None:
    (small_disk / "run").mkdir()
    fill(small_disk)
    with (
        pytest.raises(DiskError, match=r"disk is full, so .*run\.lock"),
        run_lock(small_disk / "run", print),
    ):
        pass
    assert not (small_disk / "run" / LOCK).exists()


def test_a_disk_that_becomes_read_only_is_one_sentence(
    config_file: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file, write in WRITERS.items():

        def train(
            _: object,
            reporter: Any,
            checkpoints: CheckpointStore,
            resumed: Any,
            began: float,
            file: str = file,
            write: Callable[..., object] = write,
        ) -> bool:
            (small_disk / "run" / "export").mkdir(parents=True, exist_ok=True)
            if file != "config.yaml":
                reporter.step(1, {"loss": 1.0})
                # Open files would refuse to make the disk read-only; a real error does not ask.
                reporter.close()
                reporter.rewind(1)
            make_read_only(small_disk)
            write(reporter, checkpoints)
            raise AssertionError(f"{file} was written to a read-only disk")

        monkeypatch.setattr(training, "train", train)
        result = CliRunner().invoke(app, ["train", str(config_file)])
        make_read_only(small_disk, read_only=False)
        (small_disk / "run" / LOCK).unlink()  # that of a run which has ended, were this no test
        assert result.exit_code == 1 and isinstance(result.exception, SystemExit), (
            file,
            result.exception,
        )
        (sentence,) = result.stderr.splitlines()
        assert "cannot be written (Read-only file system)" in sentence, (file, sentence)


def test_folders_of_a_run_that_cannot_be_written_are_refused_at_the_start(
    config_file: Path, small_disk: Path, tmp_path: Path
) -> None:
    for name in ("checkpoints", "samples", "tensorboard"):
        folder = small_disk / "run" / name
        with disk_at(folder) as mounted:
            make_read_only(mounted)
            result = CliRunner().invoke(app, ["train", str(config_file), "--dry-run"])
        assert result.exit_code == 2, (name, result.output)
        assert f"({folder}: Read-only file system)" in result.stderr


def disk_at(folder: Path) -> Any:
    folder.parent.mkdir(exist_ok=True)
    return disk(folder, "1m")


@pytest.mark.slow
def test_files_of_the_learner(small_disk: Path, tmp_path: Path) -> None:
    """DeepSpeed and safetensors have errors of their own, in which no disk is mentioned."""
    from one_rank import start

    worker = start(str(build_tiny(tmp_path / "tiny", seed=0)))

    class Rank:
        async def save(self, folder: Path) -> None:
            worker.save(folder)

    def save_it(step: int) -> None:
        saving = store(small_disk / "checkpoints").save(step, Rank(), {}, 0)  # type: ignore[arg-type]
        asyncio.run(saving)

    save_it(1)
    fill(small_disk)
    (small_disk / "checkpoints/step-1").rename(small_disk / "first")  # no size to compare with
    with pytest.raises(CheckpointError, match=r"disk of .* is full, so the checkpoint of step 2"):
        save_it(2)
    export = small_disk / "export"
    with pytest.raises(DiskError, match=r"full, so .*export was not written"), naming(export):
        worker.export(export)
    make_room(small_disk)
    save_it(2)
    worker.export(export)
    assert (export / "model.safetensors").is_file()
