"""Finished groups for tests of the loop: two episodes of two answers each."""

from __future__ import annotations

from collections.abc import Generator

import numpy as np

from rlsys.training.protocols import FinishedGroup
from rlsys.types import GroupReport, Sample


class NoSamples:
    """Stands for samples that nobody is to read."""

    def __await__(self) -> Generator[None, None, tuple[Sample, ...]]:
        raise AssertionError("the samples of this group are not to be read")


def report(index: int, version: int) -> GroupReport:
    """Of a group that was sampled at `version`."""
    return GroupReport(
        index=index,
        problem_id="",
        difficulty=None,
        versions=(version, version),
        scores_G=np.array([0.5, 0.75], np.float32),
        numbers={
            "score/16": np.array([0.0, 0.5], np.float32),
            "score/64": np.array([1.0, 1.0], np.float32),
            "thought/length": np.array([10, 20], np.float32),
            "thought/closed": np.array([1, 0], np.float32),
        },
        invalid=1,
        answers=4,
        sampled_tokens=40,
        sizes=((30, 20), (30, 20)),
        example={"group": index},
    )


def group(index: int, version: int) -> FinishedGroup:
    """The same, as the loop gets it."""
    return FinishedGroup(report=report(index, version), samples=NoSamples())
