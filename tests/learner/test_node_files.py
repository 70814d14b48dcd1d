"""Checkpoints of ranks on nodes with disks of their own: fetched, brought, and nothing deleted
where the file system is shared. Ranks are hand-written; their "disk" is a folder."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from learner import node_files
from learner.group import LearnerGroup


class Rank:
    """A rank on node `node`, whose files lie below `disk`; the driver's lie where they are."""

    def __init__(self, number: int, node: str, disk: Path) -> None:
        self._number, self._node, self._disk = number, node, disk
        self.loaded: list[str] = []

    async def on_node(self, function: Callable[..., Any], *args: Any) -> Any:
        if function is node_files._node:
            return self._node
        result = function(*(self._there(a) if isinstance(a, Path) else a for a in args))
        return Path("/", result.relative_to(self._disk)) if isinstance(result, Path) else result

    async def save(self, folder: Path) -> None:
        shards = self._there(folder) / "ranks"
        shards.mkdir(parents=True, exist_ok=True)
        (shards / f"rank{self._number}.pt").write_bytes(bytes([self._number]) * 10)
        (self._there(folder) / "latest").write_text("ranks")
        (shards / "empty").touch()

    async def load(self, folder: Path) -> None:
        self.loaded = files(self._there(folder))

    async def export(self, folder: Path) -> None:
        if self._number == 0:
            self._there(folder).mkdir(parents=True, exist_ok=True)
            (self._there(folder) / "config.json").write_text("new")

    def _there(self, path: Path) -> Path:
        return self._disk / path.relative_to("/")


def files(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


@pytest.fixture(autouse=True)
def head(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver runs on a node of its own, and parts of files are small."""
    monkeypatch.setattr(node_files, "_node", lambda: "head")
    monkeypatch.setattr(node_files, "PART_BYTES", 4)


def group(*ranks: Rank) -> LearnerGroup:
    made = LearnerGroup.__new__(LearnerGroup)
    made._ranks = cast(Any, list(ranks))
    return made


SHARDS = ["latest", "ranks/empty", "ranks/rank0.pt", "ranks/rank1.pt", "ranks/rank2.pt"]


def test_disks_apart(tmp_path: Path) -> None:
    one, two = tmp_path / "disk1", tmp_path / "disk2"
    ranks = [Rank(0, "node1", one), Rank(1, "node1", one), Rank(2, "node2", two)]
    learner, run = group(*ranks), tmp_path / "run"
    partial = run / "checkpoints" / ".step-4.partial"
    partial.mkdir(parents=True)
    left_over = ranks[2]._there(partial) / "learner" / "ranks" / "rank9.pt"
    left_over.parent.mkdir(parents=True)
    left_over.touch()

    asyncio.run(learner.save(partial / "learner"))
    assert files(partial) == [f"learner/{name}" for name in SHARDS]
    assert (partial / "learner/ranks/rank2.pt").read_bytes() == b"\2" * 10
    assert files(one) == files(two) == []

    asyncio.run(learner.load(partial / "learner"))
    assert [rank.loaded for rank in ranks] == [SHARDS] * 3
    assert files(partial) == [f"learner/{name}" for name in SHARDS]
    assert files(one) == files(two) == []

    (run / "export").mkdir()
    (run / "export" / "config.json").write_text("old")
    asyncio.run(learner.export(run / "export"))
    assert files(run / "export") == ["config.json"]
    assert (run / "export" / "config.json").read_text() == "new"
    assert files(one) == [] and not list(run.glob("export?*"))


def test_a_shared_disk_is_left_alone(tmp_path: Path) -> None:
    shared = Path("/")
    ranks = [Rank(0, "node1", shared), Rank(1, "node2", shared), Rank(2, "head", shared)]
    partial = tmp_path / "partial"
    partial.mkdir()
    assert asyncio.run(node_files.ranks_apart(cast(Any, ranks), partial)) == []
    asyncio.run(group(*ranks).save(partial / "learner"))
    asyncio.run(group(*ranks).load(partial / "learner"))
    assert files(partial) == [f"learner/{name}" for name in SHARDS]


def test_one_side_that_sees_late_is_still_a_shared_disk(tmp_path: Path) -> None:
    class Late(Rank):
        async def on_node(self, function: Callable[..., Any], *args: Any) -> Any:
            result = await super().on_node(function, *args)
            return False if isinstance(result, bool) else result

    ranks = [Late(0, "node1", Path("/"))]
    assert asyncio.run(node_files.ranks_apart(cast(Any, ranks), tmp_path)) == []
