"""Hand-written parts for tests of checkpoints: a group, a learner, and ways to damage a file."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import numpy as np

from rlsys.training.checkpoints import CheckpointStore
from rlsys.training.protocols import FinishedGroup
from rlsys.types import GroupReport, Kind, Sample, Segment


class Ready:
    """Samples that are there already; may be awaited again and again, as an object reference."""

    def __init__(self, samples: tuple[Sample, ...]) -> None:
        self._samples = samples

    def __await__(self) -> Generator[Any, None, tuple[Sample, ...]]:
        yield from asyncio.sleep(0).__await__()
        return self._samples


class Learner:
    """Saves two files, or dies half-way through with `error`."""

    def __init__(
        self, error: Exception | None = None, size: int = 100, extra: Path | None = None
    ) -> None:
        self._error = error
        self._size = size
        self._extra = extra

    async def save(self, folder: Path) -> None:
        (folder / "ranks").mkdir(parents=True)
        (folder / "ranks" / "model.pt").write_bytes(bytes(range(100)) * (self._size // 100))
        if self._extra is not None:
            shutil.copy(self._extra, folder / "ranks")
        if self._error:
            raise self._error
        (folder / "ranks" / "optimizer.pt").write_bytes(b"momentum" * (self._size // 8))


def store(folder: Path, keep: int = 2, told: list[str] | None = None) -> CheckpointStore:
    return CheckpointStore(folder, keep, (told if told is not None else []).append)


def save(
    checkpoints: CheckpointStore,
    step: int,
    finished: dict[int, FinishedGroup] | None = None,
    next_group: int = 0,
    **learner: Any,
) -> None:
    saving = checkpoints.save(step, Learner(**learner), finished or {}, next_group)  # type: ignore[arg-type]
    asyncio.run(saving)


def finished_group(index: int, text: str = "") -> FinishedGroup:
    """A group with one sample of three tokens."""
    return FinishedGroup(report=report(index, text), samples=Ready((sample(),)))


def report(index: int, text: str = "") -> GroupReport:
    return GroupReport(
        index=index,
        problem_id=f"p{index}{text}",
        difficulty=None,
        versions=(index, index + 1),
        scores_G=np.array([0.5, 0.75], np.float32),
        numbers={"score": np.array([1.0], np.float32), "none": np.zeros((0, 2), np.float32)},
        invalid=0,
        answers=2,
        sampled_tokens=3,
        sizes=((3, 1),),
        example={"text": text, "scores": [0.5], "deep": {"a": None}},
    )


def sample() -> Sample:
    prompt = Segment(parent=-1, cut=0, kind=Kind.PROMPT, token_ids=np.array([5, 6], np.int32))
    thought = Segment(
        parent=0,
        cut=2,
        kind=Kind.THOUGHT,
        token_ids=np.array([7], np.int32),
        logprobs=np.array([-0.5], np.float32),
        versions=(0, 1),
    )
    return Sample(segments=(prompt, thought), advantages=(None, np.array([0.25], np.float32)))


def flip_byte(file: Path) -> None:
    flip_bytes(file, 1)


def flip_bytes(file: Path, count: int) -> None:
    """Change up to `count` bytes from the middle of a file on."""
    data = bytearray(file.read_bytes())
    for place in range(len(data) // 2, min(len(data) // 2 + count, len(data))):
        data[place] ^= 255
    file.write_bytes(data)


def change_state(folder: Path, **values: Any) -> None:
    state = json.loads((folder / "state.json").read_text())
    (folder / "state.json").write_text(json.dumps(state | values))


def make_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated": (
        lambda folder: os.truncate(folder / "learner/ranks/model.pt", 60),
        "learner/ranks/model.pt has 60 bytes instead of 100",
    ),
    "empty": (
        lambda folder: (folder / "learner/ranks/model.pt").write_bytes(b""),
        "learner/ranks/model.pt has 0 bytes instead of 100",
    ),
    "flipped byte": (
        lambda folder: flip_byte(folder / "learner/ranks/optimizer.pt"),
        "learner/ranks/optimizer.pt has changed",
    ),
    "4,000 flipped bytes": (
        lambda folder: flip_bytes(folder / "learner/ranks/optimizer.pt", 4000),
        "learner/ranks/optimizer.pt has changed",
    ),
    "missing file": (
        lambda folder: (folder / "learner/ranks/optimizer.pt").unlink(),
        "learner/ranks/optimizer.pt is missing",
    ),
    "extra file of the learner": (
        lambda folder: (folder / "learner/ranks/rank_1.pt").write_bytes(b"1"),
        "learner/ranks/rank_1.pt was not written with this checkpoint",
    ),
    "garbage of groups": (
        lambda folder: (folder / "groups.msgpack").write_bytes(b"?"),
        "groups.msgpack has changed",
    ),
    "missing groups": (
        lambda folder: (folder / "groups.msgpack").unlink(),
        "groups.msgpack is missing",
    ),
    "missing state": (lambda folder: (folder / "state.json").unlink(), "state.json is missing"),
    "empty state": (
        lambda folder: (folder / "state.json").write_bytes(b""),
        "state.json is not readable",
    ),
    "state that is no text": (
        lambda folder: (folder / "state.json").write_bytes(b"\xff\xfe"),
        "state.json is not readable",
    ),
    "state without files": (
        lambda folder: change_state(folder, files=[]),
        "was not written with this checkpoint",
    ),
    "state of another step": (lambda folder: change_state(folder, step=3), "holds step 3"),
    "a folder that is a file": (
        lambda folder: make_folder(folder / "groups.msgpack"),
        "groups.msgpack",
    ),
}
"""What can happen to the folder of a checkpoint, and words of the sentence about it."""
