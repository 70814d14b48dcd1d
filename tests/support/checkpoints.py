"""Hand-written parts for tests of checkpoints: a group, a learner, and ways to damage a file."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Generator
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

    def __init__(self, error: Exception | None = None, size: int = 100) -> None:
        self._error = error
        self._size = size

    async def save(self, folder: Path) -> None:
        (folder / "ranks").mkdir(parents=True)
        (folder / "ranks" / "model.pt").write_bytes(bytes(range(100)) * (self._size // 100))
        if self._error:
            raise self._error
        (folder / "ranks" / "optimizer.pt").write_bytes(b"momentum" * (self._size // 8))


def store(folder: Path, keep: int = 2, told: list[str] | None = None) -> CheckpointStore:
    return CheckpointStore(folder, keep, (told if told is not None else []).append)


def save(
    checkpoints: CheckpointStore,
    step: int,
    finished: dict[int, FinishedGroup] | None = None,
    **learner: Any,
) -> None:
    asyncio.run(checkpoints.save(step, Learner(**learner), finished or {}))  # type: ignore[arg-type]


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
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 255
    file.write_bytes(data)


def change_state(folder: Path, **values: Any) -> None:
    state = json.loads((folder / "state.json").read_text())
    (folder / "state.json").write_text(json.dumps(state | values))
