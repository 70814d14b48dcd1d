"""Checkpoints appear complete or not at all, the newest are kept, foreign formats are refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from rlsys.errors import CheckpointError
from rlsys.training.checkpoints import FORMAT, CheckpointStore
from rlsys.training.protocols import FinishedGroup


class Files:
    """Groups are plain strings here, and travel as JSON."""

    async def write_groups(self, path: Path, groups: Mapping[int, Any]) -> None:
        path.write_text(json.dumps(dict(groups)))

    def read_groups(self, path: Path) -> dict[int, Any]:
        return {int(ticket): group for ticket, group in json.loads(path.read_text()).items()}


class Learner:
    """Saves one file, or dies half-way through."""

    def __init__(self, dies: bool = False) -> None:
        self._dies = dies

    async def save(self, folder: Path) -> None:
        assert not (folder.parent / "state.json").exists()  # it says that the rest is there
        folder.mkdir()
        (folder / "weights").write_text("new")
        if self._dies:
            raise OSError("no space left on device")

    async def step(self, groups: Sequence[FinishedGroup]) -> dict[str, float]:
        raise AssertionError("a checkpoint trains nothing")

    async def export(self, folder: Path) -> None:
        raise AssertionError("a checkpoint exports nothing")


def store(folder: Path, keep: int = 2) -> CheckpointStore:
    return CheckpointStore(folder, keep, Files())


def save(checkpoints: CheckpointStore, step: int, *, dies: bool = False, **groups: str) -> None:
    tickets: Any = {int(name.removeprefix("t")): group for name, group in groups.items()}
    asyncio.run(checkpoints.save(step, Learner(dies), tickets))


def groups_in(checkpoints: CheckpointStore, folder: Path) -> dict[int, object]:
    return dict(checkpoints.read_groups(folder))


def test_there_is_no_latest_before_the_first(tmp_path: Path) -> None:
    assert store(tmp_path / "checkpoints").latest() is None


def test_what_was_saved_is_read(tmp_path: Path) -> None:
    save(store(tmp_path), 7, t30="a group", t31="another")
    step, folder = store(tmp_path).latest() or (0, Path())
    assert (step, folder) == (7, tmp_path / "step-7")
    assert (folder / "learner" / "weights").read_text() == "new"
    assert groups_in(store(tmp_path), folder) == {30: "a group", 31: "another"}


def test_the_newest_are_kept_by_number(tmp_path: Path) -> None:
    for step in (8, 9, 10, 11):
        save(store(tmp_path, keep=2), step)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-10", "step-11"]


def test_a_save_that_dies_leaves_the_one_before(tmp_path: Path) -> None:
    save(store(tmp_path), 1)
    with pytest.raises(OSError, match="no space"):
        save(store(tmp_path), 2, dies=True)
    assert store(tmp_path).latest() == (1, tmp_path / "step-1")
    save(store(tmp_path), 2)  # what the dead one left is in nobody's way
    assert store(tmp_path).latest() == (2, tmp_path / "step-2")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-1", "step-2"]


def test_what_a_kill_left_of_a_deletion_or_a_save_goes_with_the_next_save(tmp_path: Path) -> None:
    save(store(tmp_path), 1)
    (tmp_path / "step-1" / "state.json").unlink()  # killed while step-1 was being deleted
    with pytest.raises(OSError, match="no space"):
        save(store(tmp_path), 3, dies=True)
    save(store(tmp_path), 4)
    assert [p.name for p in tmp_path.iterdir()] == ["step-4"]


def test_what_else_lies_there_is_the_users(tmp_path: Path) -> None:
    save(store(tmp_path), 1)
    (tmp_path / "step-1").rename(tmp_path / "step-1-best")
    (tmp_path / "step-2.tar").write_text("")
    save(store(tmp_path, keep=1), 3)
    save(store(tmp_path, keep=1), 4)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-1-best", "step-2.tar", "step-4"]
    assert store(tmp_path).latest() == (4, tmp_path / "step-4")


def test_a_folder_without_its_last_file_is_no_checkpoint(tmp_path: Path) -> None:
    save(store(tmp_path), 3)
    save(store(tmp_path), 5)
    (tmp_path / "step-5" / "state.json").unlink()
    assert store(tmp_path).latest() == (3, tmp_path / "step-3")


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    save(store(tmp_path), 4, t1="old")
    save(store(tmp_path), 4, t2="new")
    assert groups_in(store(tmp_path), tmp_path / "step-4") == {2: "new"}


def test_another_format_is_refused(tmp_path: Path) -> None:
    save(store(tmp_path), 6)
    state = {"format": FORMAT + 1, "step": 6}
    (tmp_path / "step-6" / "state.json").write_text(json.dumps(state))
    with pytest.raises(CheckpointError, match=r"step-6 has format 2, .* of rlsys reads 1"):
        store(tmp_path).latest()
