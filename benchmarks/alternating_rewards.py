"""A reward that costs nothing: every second completion of a group is right.

Both sides of benchmarks/against_trl.py train with it. Models with random weights never answer
right, equal rewards make every gradient 0, and matrix products with zeros are faster than others.
"""

from __future__ import annotations

from rlsys.algorithms import grpo
from rlsys.algorithms.tree_samples import whole_episode
from rlsys.config import AlgorithmConfig, RunConfig
from rlsys.types import Group, Sample


def alternating(count: int) -> list[float]:
    """Return 0, 1, 0, 1, ..., as many as asked for."""
    return [float(index % 2) for index in range(count)]


class AlternatingRewardsConfig(AlgorithmConfig):
    """The `algorithm` section: there are no settings."""


class AlternatingRewards:
    """GRPO with these rewards in the place of the graded ones."""

    Config = AlternatingRewardsConfig

    @staticmethod
    def samples(group: Group, config: RunConfig) -> tuple[Sample, ...]:
        """One advantage on all tokens that an episode sampled, as `algorithm.method=grpo`."""
        advantages_G = grpo.advantages(alternating(len(group.episodes)), scale="std")
        return tuple(map(whole_episode, group.episodes, advantages_G))
