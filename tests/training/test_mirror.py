"""The copy of a run directory at a URL: whole checkpoints only, and what a new machine fetches."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import Any, cast

import fsspec
import pytest
from checkpoints import Learner, flip_byte

from rlsys.config import RunConfig
from rlsys.config.loading import load_config
from rlsys.errors import CheckpointError, ConfigError, RunFolderError
from rlsys.training.checkpoints import CheckpointStore
from rlsys.training.mirror import Mirror
from rlsys.training.run_folder import finished_step, mark_finished


class Machine:
    """A machine with a disk of its own that continues the run at a URL."""

    def __init__(self, disk: Path, url: str) -> None:
        self.run_dir, self.told = disk / "run", list[str]()
        self.mirror = Mirror(url, self.run_dir, keep=2)
        self.mirror.tell = self.told.append
        self.store = CheckpointStore(
            self.run_dir / "checkpoints", 2, self.told.append, self.mirror.save
        )

    def start(self) -> int:
        """Return the step that the run goes on from."""
        self.mirror.restore()
        found = self.store.latest()
        self.mirror.claim()
        return 0 if found is None else found.step

    def save(self, step: int) -> None:
        (self.run_dir / "samples").mkdir(parents=True, exist_ok=True)
        (self.run_dir / "metrics.jsonl").write_text(f'{{"step": {step}}}\n')
        (self.run_dir / "samples" / f"step-{step}.jsonl").write_text("{}\n")
        (self.run_dir / "run.lock").write_text("held")
        asyncio.run(self.store.save(step, cast(Any, Learner()), {}, 0))


@pytest.fixture(params=["memory", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    name = uuid.uuid4().hex
    return f"memory://{name}/run" if request.param == "memory" else f"file://{tmp_path}/{name}"


def at(url: str) -> set[str]:
    files, root = fsspec.url_to_fs(url)
    return {path[len(root) :].strip("/") for path in files.find(root)}


def change(url: str, name: str, content: bytes | None) -> None:
    files, root = fsspec.url_to_fs(url)
    path = f"{root}/{name}"
    files.rm_file(path) if content is None else files.pipe_file(path, content)


CHECKPOINT = {
    "state.json",
    "groups.msgpack",
    "learner/ranks/model.pt",
    "learner/ranks/optimizer.pt",
}


def test_a_new_machine_goes_on_from_the_copy(tmp_path: Path, url: str) -> None:
    first = Machine(tmp_path / "a", url)
    assert first.start() == 0
    for step in (2, 4, 6):
        first.save(step)
    assert at(url) == {
        *("writer.json", "metrics.jsonl"),
        *(f"samples/step-{step}.jsonl" for step in (2, 4, 6)),
        *(f"checkpoints/step-{step}/{name}" for step in (4, 6) for name in CHECKPOINT),
    }
    second = Machine(tmp_path / "b", url)
    assert second.start() == 6
    assert (second.run_dir / "metrics.jsonl").read_text() == '{"step": 6}\n'
    assert not (second.run_dir / "run.lock").exists()
    second.save(8)
    # The first machine comes back: its own checkpoint is older than the copy.
    assert Machine(tmp_path / "a", url).start() == 8


def test_the_disk_wins_if_it_is_newer(tmp_path: Path, url: str) -> None:
    machine = Machine(tmp_path, url)
    machine.start()
    machine.save(2)
    machine.save(4)
    change(url, "checkpoints/step-4/state.json", None)
    assert Machine(tmp_path, url).start() == 4


def test_a_checkpoint_that_is_not_whole_is_not_used(tmp_path: Path, url: str) -> None:
    machine = Machine(tmp_path / "a", url)
    machine.start()
    machine.save(2)
    machine.save(4)
    change(url, "checkpoints/step-4/learner/ranks/model.pt", b"x" * 100)
    other = Machine(tmp_path / "b", url)
    assert other.start() == 2
    assert "step-4 is damaged and not used" in other.told[0]
    change(url, "checkpoints/step-4/state.json", None)  # killed while it was being sent
    assert Machine(tmp_path / "c", url).start() == 2
    change(url, "checkpoints/step-2/groups.msgpack", None)
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* is whole"):
        Machine(tmp_path / "d", url).start()


def test_a_damaged_disk_is_repaired_from_the_copy(tmp_path: Path, url: str) -> None:
    machine = Machine(tmp_path, url)
    machine.start()
    machine.save(2)
    machine.save(4)
    flip_byte(machine.run_dir / "checkpoints/step-4/learner/ranks/model.pt")
    again = Machine(tmp_path, url)
    assert again.start() == 4
    assert len(list((again.run_dir / "checkpoints").glob("step-4.damaged-*"))) == 1


def test_the_result_is_copied_and_fetched(tmp_path: Path, url: str) -> None:
    machine = Machine(tmp_path / "a", url)
    machine.start()
    machine.save(3)
    machine.mirror.finish()
    assert "finished.json" not in at(url)
    (machine.run_dir / "export").mkdir()
    (machine.run_dir / "export" / "config.json").write_text("{}")
    mark_finished(machine.run_dir, 3)
    machine.mirror.finish()
    assert {"finished.json", "export/config.json"} <= at(url)
    other = Machine(tmp_path / "b", url)
    assert other.start() == 3
    config = load_config(None, ["steps=3", f"run_dir={other.run_dir}"], RunConfig)
    assert finished_step(config) == 3


def test_the_run_that_started_last_is_the_only_writer(tmp_path: Path, url: str) -> None:
    old, new = Machine(tmp_path / "a", url), Machine(tmp_path / "b", url)
    old.start()
    old.save(2)
    assert new.start() == 2
    with pytest.raises(RunFolderError, match="has started to write"):
        old.save(4)
    assert not any("step-4" in name for name in at(url))


def test_a_run_outlives_a_network_that_fails(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(tmp_path, url)
    machine.start()
    files = machine.mirror._files

    def refuse(*args: Any, **options: Any) -> None:
        raise OSError("no route to host")

    with monkeypatch.context() as patch:
        patch.setattr(files, "put_file", refuse)
        machine.save(2)
        assert "warning: the checkpoint of step 2 was not copied" in machine.told[0]
        assert "no route to host" in machine.told[0]
        machine.mirror.finish()
    machine.save(4)
    assert "checkpoints/step-4/state.json" in at(url)


def test_wrong_urls() -> None:
    with pytest.raises(ConfigError, match=r"checkpoint.mirror: .* no URL"):
        load_config(None, ["checkpoint.mirror=runs/copy"], RunConfig)
    with pytest.raises(ConfigError, match=r"checkpoint.mirror 'nofs://x' cannot be used"):
        Mirror("nofs://x", Path("run"), 2)
