"""A checkpoint appears whole or not at all; one that is damaged later is found and set aside."""

from __future__ import annotations

import errno
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from checkpoints import DAMAGES, finished_group, flip_byte, save, store
from disks import disk

from rlsys.errors import CheckpointError
from rlsys.training import checkpoints as module
from rlsys.training.checkpoints import Checkpoint

NO_SPACE = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
DIED = RuntimeError("rank 0 died")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_there_is_no_latest_before_the_first(tmp_path: Path) -> None:
    assert store(tmp_path / "checkpoints").latest() is None


def test_what_was_saved_is_read(tmp_path: Path) -> None:
    save(store(tmp_path), 7, {30: finished_group(30, "½\ud800"), 31: finished_group(31)})
    found = store(tmp_path).latest()
    assert found == Checkpoint(7, tmp_path / "step-7")
    assert (found.learner / "ranks" / "model.pt").read_bytes() == bytes(range(100))
    first, second = found.groups()
    assert (first.ticket, first.report.problem_id, second.ticket) == (30, "p30½\ud800", 31)
    assert first.samples[0].segments[1].token_ids.tolist() == [7]


def test_the_list_of_files_is_one_that_sha256sum_confirms(tmp_path: Path) -> None:
    save(store(tmp_path), 7)
    state = json.loads((tmp_path / "step-7" / "state.json").read_text())
    assert (state["format"], state["step"]) == (2, 7)
    listed = {file["name"]: file for file in state["files"]}
    assert listed.keys() == {
        "groups.msgpack",
        "learner/ranks/model.pt",
        "learner/ranks/optimizer.pt",
    }
    assert listed["learner/ranks/model.pt"]["size"] == 100
    lines = "".join(f"{file['sha256']}  {name}\n" for name, file in listed.items())
    subprocess.run(["sha256sum", "-c"], input=lines.encode(), cwd=tmp_path / "step-7", check=True)


def test_the_newest_are_kept_by_number(tmp_path: Path) -> None:
    for step in (8, 9, 10, 11):
        save(store(tmp_path, keep=2), step)
    assert names(tmp_path) == ["step-10", "step-11"]


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    save(store(tmp_path), 4, {1: finished_group(1)})
    save(store(tmp_path), 4, {2: finished_group(2)})
    found = store(tmp_path).latest()
    assert found is not None
    assert [group.ticket for group in found.groups()] == [2]
    assert names(tmp_path) == ["step-4"]


def test_what_else_lies_there_is_the_users(tmp_path: Path) -> None:
    save(store(tmp_path), 1)
    (tmp_path / "step-1").rename(tmp_path / "step-1-best")
    (tmp_path / "step-2.tar").write_text("")
    save(store(tmp_path, keep=1), 3)
    save(store(tmp_path, keep=1), 4)
    assert names(tmp_path) == ["step-1-best", "step-2.tar", "step-4"]


def test_a_save_that_dies_leaves_nothing_but_the_one_before(tmp_path: Path) -> None:
    save(store(tmp_path), 1)
    with pytest.raises(RuntimeError, match="rank 0 died"):
        save(store(tmp_path), 2, error=DIED)
    assert names(tmp_path) == ["step-1"]


def test_what_a_kill_left_is_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / ".step-2.partial" / "learner").mkdir(parents=True)
    (tmp_path / ".step-9.partial").write_text("a file")
    (tmp_path / ".step-1.deleted").mkdir()
    assert store(tmp_path).latest() is None
    save(store(tmp_path), 2)
    assert names(tmp_path) == ["step-2"]


def test_a_left_over_that_cannot_be_deleted_is_in_nobodys_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".step-2.partial").mkdir()
    monkeypatch.setattr("shutil.rmtree", lambda *_, **__: None)
    save(store(tmp_path), 2)
    assert names(tmp_path) == [".step-2.partial", "step-2"]


def test_every_damage_is_named_and_the_checkpoint_before_is_used(tmp_path: Path) -> None:
    for number, (damage, words) in enumerate(DAMAGES.values()):
        folder = tmp_path / str(number)
        told: list[str] = []
        save(store(folder), 2)
        save(store(folder), 4)
        damage(folder / "step-4")
        found = store(folder, told=told).latest()
        assert found is not None and found.step == 2, words
        (sentence,) = told
        assert words in sentence
        assert "step-4 is damaged and is now called step-4.damaged" in sentence
        assert "goes on from step 2" in sentence
        assert names(folder) == ["step-2", "step-4.damaged"]


def test_with_one_checkpoint_every_damage_is_an_error_that_changes_nothing(tmp_path: Path) -> None:
    for number, (damage, words) in enumerate(DAMAGES.values()):
        folder = tmp_path / str(number)
        save(store(folder, keep=1), 2)
        save(store(folder, keep=1), 4)
        damage(folder / "step-4")
        with pytest.raises(CheckpointError, match=r"no checkpoint in .* is whole") as raised:
            store(folder, keep=1).latest()
        assert words in str(raised.value)
        assert "restore one from a backup" in str(raised.value)
        assert names(folder) == ["step-4"]


def test_damaged_ones_are_kept_and_not_counted(tmp_path: Path) -> None:
    for step in (2, 4):
        save(store(tmp_path), step)
    for again in ("step-4.damaged", "step-4.damaged-1"):
        flip_byte(tmp_path / "step-4" / "learner/ranks/model.pt")
        store(tmp_path).latest()
        assert (tmp_path / again).is_dir()
        save(store(tmp_path), 4)
    for step in (6, 8):
        save(store(tmp_path), step)
    assert names(tmp_path) == ["step-4.damaged", "step-4.damaged-1", "step-6", "step-8"]


def test_one_that_is_seen_to_be_damaged_while_pruning_is_kept(tmp_path: Path) -> None:
    told: list[str] = []
    save(store(tmp_path), 2)
    save(store(tmp_path), 4)
    (tmp_path / "step-4" / "state.json").write_bytes(b"")
    save(store(tmp_path, told=told), 6)
    assert names(tmp_path) == ["step-2", "step-4.damaged", "step-6"]
    assert "state.json is not readable" in told[0]


def test_a_run_whose_checkpoints_were_all_set_aside_does_not_start_anew(tmp_path: Path) -> None:
    (tmp_path / "step-4.damaged").mkdir()
    with pytest.raises(CheckpointError, match=r"step-4\.damaged \(set aside earlier\)"):
        store(tmp_path).latest()


def test_a_newer_format_is_refused_and_never_deleted(tmp_path: Path) -> None:
    save(store(tmp_path), 2)
    save(store(tmp_path), 6)
    (tmp_path / "step-6/state.json").write_text('{"format": 3, "step": {"of": "the future"}}')
    with pytest.raises(CheckpointError, match=r"step-6 has format 3, .* reads 1 to 2"):
        store(tmp_path).latest()
    save(store(tmp_path, keep=1), 7)
    assert names(tmp_path) == ["step-6", "step-7"]


def test_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    save(store(tmp_path), 1)
    remote = RuntimeError("RayTaskError: ... OSError: [Errno 28] No space left on device")
    for error in (NO_SPACE, remote):
        with pytest.raises(CheckpointError, match=r"disk of .* is full, .* step 2 was not written"):
            save(store(tmp_path), 2, error=error)
        assert names(tmp_path) == ["step-1"]


def test_space_is_checked_before_a_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(store(tmp_path), 1, size=100_000)
    free = 50_000
    told: list[str] = []
    monkeypatch.setattr(module, "missing_bytes", lambda _, wanted: max(wanted - free, 0))
    with pytest.raises(CheckpointError, match=r"lacks 150,\d\d\d bytes .* step 2 .*from step 1"):
        save(store(tmp_path), 2)
    free = 300_000
    save(store(tmp_path, told=told), 2, size=100_000)
    (sentence,) = told
    assert "space for one more checkpoint only; free 100," in sentence
    assert names(tmp_path) == ["step-1", "step-2"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 4 MiB."""
    with disk(tmp_path, "4m"):
        yield tmp_path


def test_a_disk_that_is_really_full(small_disk: Path) -> None:
    save(store(small_disk), 1, size=100_000)
    with pytest.raises(CheckpointError, match="is full, so the checkpoint of step 2"):
        save(store(small_disk), 2, size=10_000_000)
    assert names(small_disk) == ["step-1"]
    assert store(small_disk).latest() is not None
    save(store(small_disk), 2, size=1_400_000)
    with pytest.raises(CheckpointError, match=r"lacks \d[\d,]+ bytes for the checkpoint of step 3"):
        save(store(small_disk), 3, size=1_400_000)
    assert names(small_disk) == ["step-1", "step-2"]
