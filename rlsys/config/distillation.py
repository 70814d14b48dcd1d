"""Learning from a larger model on the policy's own episodes."""

from __future__ import annotations

from pydantic import PositiveFloat

from rlsys.config.base import Section
from rlsys.config.models import ModelConfig


class DistillationConfig(Section):
    """On-policy distillation (rlsys.algorithms.distill).

    Every sampled token gets log teacher - log policy as a further advantage. With
    `algorithm.method: distill` it is the only one.
    """

    teacher: ModelConfig
    """A frozen model with the policy's tokenizer. Every learner rank holds a whole copy of it."""
    coefficient: PositiveFloat = 1.0
    """Factor on the teacher's advantage, which is in nats."""
