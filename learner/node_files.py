"""Folders of ranks whose node has a disk apart from the driver's: fetched and brought through Ray.

On a shared file system nothing here copies or deletes a file. Without one, the driver's disk holds
the checkpoints: what ranks on other nodes have written is fetched, and what they read is brought.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import ray

from learner.handle import RankHandle

PART_BYTES: Final = 64 << 20
"""Bytes of a file that are in memory at the same time."""


async def ranks_apart(ranks: Sequence[RankHandle], folder: Path) -> list[RankHandle]:
    """Return one rank of every node whose `folder` is not the driver's `folder`.

    Both sides write a file with a new name and look for that of the other. So a network file system
    that shows new files late to one side is still taken for shared.
    """
    nodes = await asyncio.gather(*(rank.on_node(_node) for rank in ranks))
    first = dict(reversed(list(zip(nodes, ranks, strict=True))))
    first.pop(_node(), None)
    if not first:
        return []
    mine = _mark(folder)
    try:
        apart = await asyncio.gather(*(_is_apart(rank, mine) for rank in first.values()))
    finally:
        _remove(mine)
    return [rank for rank, is_apart in zip(first.values(), apart, strict=True) if is_apart]


async def fetch(rank: RankHandle, source: Path, target: Path) -> None:
    """Copy the files below `source` on the rank's node to `target` on the driver's."""
    for name, size in (await rank.on_node(_sizes, source)).items():
        aside = _aside(target / name)
        for start in range(0, max(size, 1), PART_BYTES):
            part = await rank.on_node(_read, source / name, start)
            await asyncio.to_thread(_append, aside, part)
        os.replace(aside, target / name)


async def bring(rank: RankHandle, folder: Path) -> None:
    """Copy the files below `folder` on the driver's node to the same place on the rank's."""
    await remove(rank, folder)
    for name, size in _sizes(folder).items():
        aside = _aside(folder / name)
        for start in range(0, max(size, 1), PART_BYTES):
            part = await asyncio.to_thread(_read, folder / name, start)
            await rank.on_node(_append, aside, part)
        await rank.on_node(os.replace, aside, folder / name)


async def remove(rank: RankHandle, folder: Path) -> None:
    """Delete `folder` on the node of a rank that `ranks_apart` has returned."""
    await rank.on_node(_remove, folder)


async def _is_apart(rank: RankHandle, mine: Path) -> bool:
    if await rank.on_node(os.path.exists, mine):
        return False
    theirs = await rank.on_node(_mark, mine.parent)
    try:
        return not os.path.exists(theirs)
    finally:
        await rank.on_node(_remove, theirs)


def _node() -> str:
    return str(ray.get_runtime_context().get_node_id())


def _mark(folder: Path) -> Path:
    """Create an empty file with a name that no file system can have remembered as missing."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f".node-{uuid.uuid4().hex}"
    path.touch()
    return path


def _sizes(folder: Path) -> dict[str, int]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): path.stat().st_size for path in files}


def _aside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}")


def _read(path: Path, start: int) -> bytes:
    with path.open("rb") as file:
        file.seek(start)
        return file.read(PART_BYTES)


def _append(path: Path, part: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(part)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
