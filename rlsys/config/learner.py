"""What a training step holds, and the DeepSpeed group that takes it."""

from __future__ import annotations

import math
from typing import Annotated, Literal, get_args

from pydantic import (
    Field,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_validator,
)

from rlsys.config.base import Fraction, NonNegativeFloat, NonNegativeInt, Section, Share


class BatchConfig(Section):
    """One unit: problems x group_size episodes, each with budgets x answers scores."""

    problems: PositiveInt = 32
    """Problems (groups) per training step."""
    group_size: PositiveInt = 8
    """Episodes per problem (G)."""
    optimizer_steps: PositiveInt = 1
    """Optimizer steps per training step; must divide `problems`."""
    dynamic_sampling: Annotated[float, Field(gt=1)] | None = None
    """Replace groups without signal (all advantages 0) by groups of further problems, until a step
    has sampled this many times `problems` (DAPO, arXiv 2503.14476). None keeps every group."""

    @property
    def episodes(self) -> int:
        """problems * group_size."""
        return self.problems * self.group_size

    @property
    def most_sampled(self) -> int:
        """Most groups that one training step samples: problems * dynamic_sampling."""
        return math.floor(self.problems * (self.dynamic_sampling or 1))

    @model_validator(mode="after")
    def _divides(self) -> BatchConfig:
        if self.problems % self.optimizer_steps:
            raise ValueError(
                f"batch.problems {self.problems} must be a multiple of "
                f"batch.optimizer_steps {self.optimizer_steps}"
            )
        return self

    @model_validator(mode="after")
    def _replaces_something(self) -> BatchConfig:
        if self.dynamic_sampling is not None and self.most_sampled == self.problems:
            raise ValueError(
                f"batch.dynamic_sampling {self.dynamic_sampling:g} replaces no group of "
                f"batch.problems {self.problems}; use {1 + 1 / self.problems:g} or more, or null"
            )
        return self


class OptimizerConfig(Section):
    """AdamW and its schedule."""

    learning_rate: NonNegativeFloat = 1e-4
    betas: tuple[Fraction, Fraction] = (0.9, 0.95)
    epsilon: PositiveFloat = 1e-8
    weight_decay: NonNegativeFloat = 0.0
    max_grad_norm: PositiveFloat = 1.0
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: NonNegativeInt = 0
    """Optimizer steps in which the rate rises."""
    warmup_ratio: Share = 0.0
    """The same as a share of all optimizer steps, rounded up."""
    offload: Literal["cpu"] | None = None
    """cpu keeps gradient sums, master weights and moments in the host's memory and updates there,
    at ZeRO stage 2 or 3: 16 bytes per trained weight of a rank. Each update is slower."""

    @model_validator(mode="after")
    def _one_warm_up(self) -> OptimizerConfig:
        if self.warmup_steps and self.warmup_ratio:
            raise ValueError(
                f"warmup_steps {self.warmup_steps} and warmup_ratio {self.warmup_ratio:g} both set "
                "the warm-up; leave one of them out"
            )
        return self


Projection = Literal["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


class LoraConfig(Section):
    """Low-rank adapters beside frozen weights (arXiv 2106.09685), through peft.

    There is no dropout: the ratio to the policy that sampled must be 1 before the first step.
    """

    rank: PositiveInt = 16
    alpha: PositiveFloat = 32.0
    """The adapters' product is multiplied by alpha / rank."""
    target_modules: tuple[Projection, ...] = get_args(Projection)
    """Projections of every layer that get an adapter."""

    @model_validator(mode="after")
    def _trains_something(self) -> LoraConfig:
        if not self.target_modules:
            raise ValueError(
                "learner.lora.target_modules is empty; name at least one projection, for instance "
                "[q_proj, v_proj]"
            )
        return self


class LearnerConfig(Section):
    """The DeepSpeed group that trains the policy."""

    ranks: PositiveInt = 1
    gpus_per_rank: NonNegativeFloat = 0.0
    """1 for a card each, a fraction to share the card with an engine, 0 for the CPU."""
    sequence_ranks: PositiveInt = 1
    """Ranks that share every row, for trees too long for one card: each computes its part of the
    tokens. Must divide `ranks` and the model's attention heads."""
    cpus_per_rank: PositiveFloat = 1.0
    zero_stage: Literal[0, 1, 2, 3] = 1
    row_tokens: PositiveInt = 1024
    """Length of a packed row; grown to the longest tree if that is longer."""
    micro_batch_rows: PositiveInt = 8
    """Rows per forward and backward pass."""
    gradient_checkpointing: bool | NonNegativeInt | Literal["auto"] = False
    """Layers whose activations are computed again in the backward pass and not kept: true for all,
    false for none, or the number of layers, counted from the first one. auto takes the fewest with
    which a rank fits its part of the card, by the memory of `rlsys plan`: on the CPU none, and all
    where that memory is unknown. Gradients are the same.

    The log-prob head follows this setting. With any checkpointed layer it also computes its logits
    again. With none it keeps one number per predicted token of a micro-batch and entry of the
    vocabulary, 2 bytes in bfloat16 and 4 in float32, unless loss.entropy_coefficient is set."""
    compile: bool = True
    """Compile every layer with torch.compile: on GPUs, below ZeRO stage 3."""
    logits_chunk: PositiveInt = 1024
    """Tokens whose float32 logits exist at once. What the log-prob head keeps for the backward pass
    (gradient_checkpointing) is not limited by it."""
    lora: LoraConfig | None = None
    """Train adapters only; None trains all weights."""
    optimizer: OptimizerConfig = OptimizerConfig()
    restarts: NonNegativeInt = 2
    """How often all ranks are started again from the last checkpoint after one of them died."""

    @property
    def data_parallel(self) -> int:
        """Parts into which the rows are dealt: ranks / sequence_ranks."""
        return self.ranks // self.sequence_ranks

    @model_validator(mode="after")
    def _whole_sequence_groups(self) -> LearnerConfig:
        if self.ranks % self.sequence_ranks:
            raise ValueError(
                f"learner.ranks {self.ranks} must be a multiple of learner.sequence_ranks "
                f"{self.sequence_ranks}; set learner.sequence_ranks to a divisor of {self.ranks}"
            )
        return self

    @field_validator("gradient_checkpointing", mode="wrap")
    @classmethod
    def _one_sentence(cls, value: object, check: ValidatorFunctionWrapHandler) -> object:
        try:
            return check(value)
        except ValidationError:  # which has a sentence for each of the three types
            raise ValueError(
                f"learner.gradient_checkpointing {value!r} must be true, false, auto, or a number "
                "of layers"
            ) from None

    @model_validator(mode="after")
    def _offload_needs_zero(self) -> LearnerConfig:
        # Stage 1 in bfloat16 is another optimizer of DeepSpeed, which cannot be offloaded.
        if self.optimizer.offload and self.zero_stage < 2:
            raise ValueError(
                "learner.optimizer.offload 'cpu' needs learner.zero_stage 2 or 3, and it is "
                f"{self.zero_stage}"
            )
        return self
