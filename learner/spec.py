"""What a learner rank is told at birth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlsys.config import LearnerConfig, LossConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerSpec:
    """Everything a rank needs; only `rank` differs between the ranks of a group."""

    model_path: str
    """Hugging Face folder or hub name of the policy at the start of the run."""
    dtype: Literal["float32", "bfloat16"]
    seed: int
    config: LearnerConfig
    loss: LossConfig
    """With aggregation `constant`, `constant` is set: the largest possible episode in tokens."""
    temperature: float
    """Sampling temperature of the engines; the learner's logits are divided by it too."""
    objective: Literal["policy", "nll"]
    total_steps: int
    """Optimizer steps of the whole run, for the learning-rate schedule."""
    optimizer_steps: int = 1
    """Optimizer steps per training step."""
    rank: int = 0

    def __post_init__(self) -> None:
        if self.loss.aggregation == "constant" and self.loss.constant is None:
            raise ValueError("aggregation 'constant' needs loss.constant, the tokens to divide by")

    @property
    def device_type(self) -> Literal["cpu", "cuda"]:
        """Where the rank runs, as torch calls it."""
        return "cuda" if self.config.gpus_per_rank > 0 else "cpu"
