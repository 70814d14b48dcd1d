"""The rows of `rlsys sft`: the same ones in the same order, made here or in other processes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

from learner.group import StoredSamples
from rlsys.assets import shipped_path
from rlsys.config import SftConfig
from rlsys.launch import supervised
from rlsys.types import Sample

STEPS, ROWS = 5, 6


def config_of(run_dir: Path, **changes: Any) -> SftConfig:
    fields: dict[str, Any] = {
        "run_dir": run_dir,
        "steps": STEPS,
        "rows_per_step": ROWS,
        "log_every": STEPS,
        "model": {"path": str(shipped_path("tiny"))},
        "data": {"source": "arithmetic"},
    }
    return SftConfig.model_validate(fields | changes)


class StubLearner:
    """Notes the rows of every step."""

    def __init__(self) -> None:
        self.steps: list[tuple[Sample, ...]] = []

    async def step(self, groups: Sequence[StoredSamples]) -> dict[str, float]:
        (group,) = groups
        samples = await group.samples
        assert list(group.sizes) == [(s.num_tokens, s.num_trained) for s in samples]
        self.steps.append(samples)
        return {}

    async def export(self, folder: Path) -> None:
        folder.mkdir(parents=True)


class Quiet:
    def step(self, *_: object) -> None: ...


@pytest.fixture(scope="module")
def _ray() -> Iterator[None]:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.mark.slow
@pytest.mark.usefixtures("_ray")
@pytest.mark.parametrize(
    ("makers", "source"), [(1, "arithmetic"), (2, "arithmetic"), (2, "countdown")]
)
def test_other_processes_make_the_rows_that_this_one_makes(
    makers: int, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, learner = config_of(tmp_path, data={"source": source}), StubLearner()
    rows = supervised.load_rows(config)
    monkeypatch.setattr(supervised, "_makers", lambda _: makers)
    asyncio.run(supervised._steps(config, rows, learner, Quiet()))  # type: ignore[arg-type]
    assert len(learner.steps) == STEPS
    for step, found in enumerate(learner.steps):
        expected = rows.samples(step, ROWS)
        for one, other in zip(found, expected, strict=True):
            for a, b in zip(one.segments, other.segments, strict=True):
                np.testing.assert_array_equal(a.token_ids, b.token_ids)
                assert a.kind == b.kind


def test_rows_are_asked_for_once_and_not_further_ahead_than_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    furthest: list[int] = []

    class Learner(StubLearner):
        async def step(self, groups: Sequence[StoredSamples]) -> dict[str, float]:
            await asyncio.sleep(0)
            furthest.append(max(asked))
            assert str(groups[0]) == f"rows of step {len(furthest) - 1}"
            return {}

    async def make(step: int) -> str:
        asked.append(step)
        return f"rows of step {step}"

    source = supervised.RowSource(make, 2)  # type: ignore[arg-type]
    monkeypatch.setattr(supervised, "_made_here", lambda *_: source)
    run = supervised._steps(config_of(tmp_path), None, Learner(), Quiet())  # type: ignore[arg-type]
    asyncio.run(run)
    assert asked == list(range(STEPS))
    assert furthest == [2, 3, 4, 4, 4]


def test_only_written_rows_of_a_learner_on_gpus_have_processes_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"prompt": "a", "response": "b"}\n')
    on_gpu = {"learner": {"gpus_per_rank": 1}}
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    assert supervised._makers(config_of(tmp_path)) == 0
    assert supervised._makers(config_of(tmp_path, **on_gpu)) == 8
    from_file = {"data": {"source": "file", "path": [str(file)]}}
    assert supervised._makers(config_of(tmp_path, **on_gpu, **from_file)) == 0
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    assert supervised._makers(config_of(tmp_path, **on_gpu)) == 1
