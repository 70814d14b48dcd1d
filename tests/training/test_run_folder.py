"""What is found out about a run directory before Ray starts, through the command line."""

from __future__ import annotations

import errno
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from checkpoints import flip_byte, save, store
from typer.testing import CliRunner

from rlsys.cli.app import app
from rlsys.config.loading import dump_config, load_config
from rlsys.errors import ConfigError
from rlsys.launch import training
from rlsys.training.checkpoints import Checkpoint
from rlsys.training.durable import disk_full, replace_file
from rlsys.training.run_folder import check_resume, finished_step, mark_finished, unmark_finished

STEPS = 4


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    data = {"source": "arithmetic", "size": 10}
    sections: dict[str, Any] = {
        "name": "a [bold]name[/] [/]",
        "steps": STEPS,
        "run_dir": str(tmp_path / "run"),
        "data": {"train": data, "evaluation": data | {"held_out": True}},
    }
    path.write_text(yaml.safe_dump(sections))
    return path


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Checkpoint | None]:
    """What training would go on from, for every run that would start Ray."""
    found: list[Checkpoint | None] = []

    def train(
        _: object, reporter: Any, __: object, resumed: Checkpoint | None, began: float
    ) -> bool:
        found.append(resumed)
        reporter.step(1, {"loss": 1.0})
        return True

    monkeypatch.setattr(training, "train", train)
    return found


def run(config_file: Path, *words: str) -> tuple[int, str]:
    """Exit code and everything that was printed, in one line."""
    result = CliRunner().invoke(app, ["train", str(config_file), *words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, " ".join(result.output.split())


def leave_run(config_file: Path, *steps: int) -> Path:
    """A run directory with checkpoints and the record of its configuration."""
    config = load_config(config_file)
    for step in steps:
        save(store(config.run_dir / "checkpoints"), step)
    (config.run_dir / "config.yaml").write_text(dump_config(config))
    return config.run_dir


def files(folder: Path) -> dict[str, int]:
    return {str(p): p.stat().st_mtime_ns for p in folder.rglob("*")}


def test_a_folder_that_cannot_be_written_is_refused(
    config_file: Path, started: list[Any], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "nowhere").symlink_to(tmp_path / "gone")
    for place in (
        "/proc/x/y",
        "/proc",
        tmp_path / "file",
        tmp_path / "file/in",
        tmp_path / "nowhere",
    ):
        for words in ([], ["--dry-run"]):
            code, output = run(config_file, f"run_dir={place}", *words)
            assert code == 2
            assert f"rlsys: run_dir '{place}' cannot be written" in output
    assert started == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a disk")
def test_a_disk_that_is_read_only_or_full_is_refused(config_file: Path, tmp_path: Path) -> None:
    for options, words in (("ro", "Read-only file system"), ("size=4k", "No space left on device")):
        disk = tmp_path / "disk"
        disk.mkdir(exist_ok=True)
        mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(disk)]
        if subprocess.run(mount, capture_output=True).returncode != 0:
            pytest.skip("this user may not mount a disk")
        try:
            if options != "ro":
                (disk / "filling").write_bytes(bytes(4096))
            code, output = run(config_file, f"run_dir={disk / 'run'}", "--dry-run")
        finally:
            subprocess.run(["umount", str(disk)], check=True)
        assert code == 2 and words in output


def test_a_dry_run_leaves_nothing(config_file: Path, tmp_path: Path) -> None:
    before = files(tmp_path)
    code, output = run(config_file, "--dry-run")
    assert code == 0
    assert "a [bold]name[/] [/]" in output
    assert files(tmp_path) == before


def test_a_damaged_checkpoint_is_found_before_ray_starts(
    config_file: Path, started: list[Any]
) -> None:
    run_dir = leave_run(config_file, 1, 2)
    (run_dir / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n')
    flip_byte(run_dir / "checkpoints/step-2/learner/ranks/model.pt")
    code, output = run(config_file)
    assert code == 0
    assert "step-2 is damaged and is now called step-2.damaged: learner/ranks/model.pt" in output
    assert [checkpoint.step for checkpoint in started] == [1]
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [row.get("loss") for row in rows] == [None, 1.0]  # the row of step 2 is dropped

    flip_byte(run_dir / "checkpoints/step-1/learner/ranks/model.pt")
    code, output = run(config_file)
    assert code == 1
    assert "rlsys: no checkpoint in" in output and "step-1 (learner/ranks/model.pt" in output
    assert len(started) == 1


def test_a_directory_in_use_is_refused(config_file: Path, started: list[Any]) -> None:
    from rlsys.training.run_lock import run_lock

    run_dir = load_config(config_file).run_dir
    with run_lock(run_dir, print):
        code, output = run(config_file)
    assert (code, started) == (2, [])
    assert f"in use by the run of process {os.getpid()} on host" in output


def test_a_finished_run_says_so_and_changes_nothing(config_file: Path, started: list[Any]) -> None:
    run_dir = leave_run(config_file, 2, STEPS)
    (run_dir / "export").mkdir()
    (run_dir / "export/model.safetensors").write_text("weights")
    mark_finished(run_dir, STEPS)
    before = files(run_dir)
    for words in ([], [f"steps={STEPS - 1}"], ["--dry-run"]):
        code, output = run(config_file, *words)
        assert code == 0
        assert f"is finished after step {STEPS}" in output and "give more steps" in output
    assert (files(run_dir), started) == (before, [])
    assert run(config_file, f"steps={STEPS + 1}")[0] == 0
    assert len(started) == 1


def test_a_run_is_not_finished_without_its_export_and_checkpoint(config_file: Path) -> None:
    run_dir = leave_run(config_file, STEPS)
    config = load_config(config_file)
    assert finished_step(config) is None
    (run_dir / "export").mkdir()
    mark_finished(run_dir, STEPS)
    assert finished_step(config) == STEPS
    save(store(run_dir / "checkpoints"), STEPS + 1)  # killed before its export
    assert finished_step(config) is None
    (run_dir / "finished.json").write_text("")
    assert finished_step(config) is None
    unmark_finished(run_dir)
    unmark_finished(run_dir)


def test_a_damaged_record_of_the_configuration_is_one_sentence(config_file: Path) -> None:
    run_dir = leave_run(config_file, 1)
    config, whole = load_config(config_file), (run_dir / "config.yaml").read_text()
    check_resume(config)
    damages: list[Callable[[Path], object]] = [
        lambda path: path.write_text(""),
        lambda path: path.write_text(whole[: len(whole) // 2]),
        lambda path: path.write_text(whole[: whole.index("checkpoint:")]),
        lambda path: path.write_bytes(b"\0" * 100),
        lambda path: path.write_bytes(b"\xff\xfe"),
        lambda path: path.unlink(),
    ]
    for damage in damages:
        damage(run_dir / "config.yaml")
        with pytest.raises(ConfigError, match=r"is damaged .*rlsys config show CONFIG.yaml >") as e:
            check_resume(config)
        assert "\n" not in str(e.value)
        (run_dir / "config.yaml").write_text(whole)


def test_a_full_disk_anywhere_is_one_sentence(
    config_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> bool:
        try:
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
        except OSError as error:
            raise ExceptionGroup("tasks", [RuntimeError("wrapped")]) from error

    monkeypatch.setattr(training, "train", fail)
    code, output = run(config_file)
    assert code == 1
    assert "rlsys: the disk is full; free some space" in output
    assert not disk_full(ValueError("another"))


def test_a_file_is_replaced_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    replace_file(path, "old ½")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError):
        patch.setattr("os.fsync", full)
        replace_file(path, "new")
    assert (path.read_text(), len(list(tmp_path.iterdir()))) == ("old ½", 1)
    replace_file(path, "new")
    assert path.read_text() == "new"
