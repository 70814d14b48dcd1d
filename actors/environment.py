"""The environment actor: grows groups and turns them into samples, many at once.

Samples stay in the object store for the learner's ranks; the driver gets a report of numbers.
"""

from __future__ import annotations

from rlsys.algorithms.samples import build_samples
from rlsys.config import RunConfig
from rlsys.environments.report import GroupReport
from rlsys.environments.sources import episode_source
from rlsys.environments.wiring import EpisodeSource, Reader, Role
from rlsys.types import Generator, Grader, Problem, Sample


class EnvironmentActor:
    """A plain class; rlsys.launch makes a Ray actor of it."""

    def __init__(
        self,
        config: RunConfig,
        generator: Generator,
        grader: Grader,
        max_length: int,
        reader: Reader | None = None,
    ) -> None:
        """Grow the episodes of `config`, in sequences of at most `max_length` tokens."""
        self._config = config

        def source(role: Role) -> EpisodeSource:
            return episode_source(config, role, generator, grader, max_length, reader)

        self._training, self._evaluation = source("training"), source("evaluation")

    async def train_group(
        self, index: int, problem: Problem
    ) -> tuple[tuple[Sample, ...], GroupReport]:
        """Grow one training group; the two results are two objects (num_returns=2)."""
        group = await self._training.grow(index, problem)
        samples = build_samples(group, self._config)
        return samples, self._training.report(group, samples)

    async def evaluate_group(self, index: int, problem: Problem) -> GroupReport:
        """Grow one group of the evaluation; nothing of it is trained on."""
        return self._evaluation.report(await self._evaluation.grow(index, problem), ())
