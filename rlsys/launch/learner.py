"""The learner's group behind the main loop's Learner protocol."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from learner.group import LearnerGroup, TrainGroup
from rlsys.training.protocols import FinishedGroup

TAG = "ranks"
"""DeepSpeed's name for the one state inside a checkpoint's learner folder."""

METRIC_NAMES = {
    "engine_gap_mean": "gap/mean",
    "engine_gap_max": "gap/max",
    "kl_k3_mean": "kl",
    "entropy_mean": "entropy",
    "tokens_per_s": "tokens_per_s/training",
}
"""What the learner calls it and what a run calls it; other names are put under `learner/`."""

PLAIN_NAMES = ("loss", "grad_norm", "learning_rate", "skipped")


class RayLearner:
    """Passes references to the ranks; tokens never come here."""

    def __init__(self, group: LearnerGroup) -> None:
        self._group = group

    async def step(self, groups: Sequence[FinishedGroup]) -> dict[str, float]:
        """One training step; returns metrics under a run's names."""
        return await self.step_samples([(g.samples, g.report.sizes) for g in groups])

    async def step_samples(self, groups: Sequence[TrainGroup]) -> dict[str, float]:
        """The same on references to samples and their sizes."""
        metrics = await self._group.step(groups)
        return {_name(name): value for name, value in metrics.items()}

    async def save(self, folder: Path) -> None:
        """Write model, optimizer and counters below `folder`."""
        await self._group.save(str(folder.absolute()), TAG)

    async def load(self, folder: Path) -> None:
        """Go on from what save wrote."""
        await self._group.load(str(folder.absolute()), TAG)

    async def export(self, folder: Path) -> None:
        """Write a Hugging Face folder of the current weights."""
        await self._group.export(str(folder.absolute()))


def _name(name: str) -> str:
    return name if name in PLAIN_NAMES else METRIC_NAMES.get(name, f"learner/{name}")
