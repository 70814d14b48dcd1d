"""The settings of a learner rank."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from rlsys.config import DistillationConfig, LearnerConfig, LossConfig, RpoConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerSpec:
    """Everything a rank needs; only `rank` differs between the ranks of a group."""

    model_path: str
    """Hugging Face folder or hub name of the policy at the start of the run."""
    dtype: Literal["float32", "bfloat16"]
    seed: int
    config: LearnerConfig
    """Its `gradient_checkpointing` is not `auto`; rlsys.launch.gradient_checkpointing decides."""
    loss: LossConfig
    """With aggregation `constant`, `constant` is set: the largest possible episode in tokens."""
    temperature: float
    """Sampling temperature of the engines; the learner's logits are divided by it too."""
    objective: Literal["policy", "nll", "rpo"]
    """Reinforcement learning, supervised rows, or pairs of responses."""
    total_steps: int
    """Optimizer steps of the whole run, for the learning-rate schedule."""
    rpo: RpoConfig = field(default_factory=RpoConfig)
    """For the objective `rpo`."""
    distillation: DistillationConfig | None = None
    """The teacher, by the path of its folder; None for none."""
    optimizer_steps: int = 1
    """Optimizer steps per training step."""
    rank: int = 0

    def __post_init__(self) -> None:
        if self.loss.aggregation == "constant" and self.loss.constant is None:
            raise ValueError("aggregation 'constant' needs loss.constant, the tokens to divide by")
        if self.config.gradient_checkpointing == "auto":
            raise ValueError("gradient_checkpointing 'auto' must be a number of layers by now")

    @property
    def needs_reference(self) -> bool:
        """True if the loss compares the policy with the one at the start of the run."""
        with_kl = self.objective == "policy" and self.loss.kl_coefficient > 0
        return with_kl or self.objective == "rpo"

    @property
    def checkpointing(self) -> bool | int:
        """Layers that are checkpointed: True for all, False for none, or their number."""
        setting = self.config.gradient_checkpointing
        assert setting != "auto"
        return setting

    @property
    def device_type(self) -> Literal["cpu", "cuda"]:
        """Where the rank runs, as torch calls it."""
        return "cuda" if self.config.gpus_per_rank > 0 else "cpu"
