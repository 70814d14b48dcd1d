"""Advantages and the loss: what the learner is given to learn from."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from rlsys.config.base import Fraction, NonNegativeFloat, Section, Share


class ReflectionReward(Section):
    """What a thought earns by reflecting often enough."""

    tokens_per_reflection: PositiveFloat = 225.09
    """The rarest that is often enough: a fifth of the starting policy's thoughts reflect more
    rarely. `rlsys reflection rows` tells the number of a policy, as `environment.reflections`
    counts; the default is the published one, of a 7B model and `mode: published`."""
    scale: Literal["code", "paper"] = "code"
    """`code` pays 0 to 1, `paper` -1 to 0; a group's advantages are the same."""
    weight: PositiveFloat = 1.0


class ShapingConfig(Section):
    """Rewards of a thought beside a right answer. All are of one question, lengths in tokens."""

    length: Literal["none", "length", "refined", "refined_paper"] = "refined"
    """Reward for being short (rlsys.algorithms.reflection.length_reward)."""
    length_weight: NonNegativeFloat = 1.0
    reflection: ReflectionReward | None = ReflectionReward()
    """None rewards no reflections."""


class BrpoConfig(Section):
    """Budget-relative policy optimisation (arXiv 2505.13438)."""

    method: Literal["brpo"] = "brpo"
    prior: Literal["base", "uniform", "linear"] = "uniform"
    """Weight of each budget in the thought's return (Section 3.1)."""
    mode: Literal["brpo", "v1only", "v2only", "none", "notrain"] = "brpo"
    """Baseline of the thought: budget-relative, one of its halves, none, or no training."""
    coefficients: Literal["index", "budget"] = "index"
    """Mix of the two baselines by slot index (the code) or by b/b_m (Figure 1)."""
    answer_method: Literal["brpo", "grpo"] = "brpo"
    """Train every answer against its siblings, or only the last one of the full budget."""
    summary_weight: NonNegativeFloat = 1.0
    """Factor on answer tokens: 1.0 is the published code, 1/(budgets * answers) is Eq. 10."""
    shaping: ShapingConfig | None = None
    """Rewards of REA-RL on top: their deviation from the group's mean is added to the advantage of
    all tokens of a thought. None is BRPO as published."""


class GrpoConfig(Section):
    """Group-relative policy optimisation: one answer, one budget, one advantage per episode."""

    method: Literal["grpo"] = "grpo"
    scale: Literal["none", "std"] = "none"
    """`std` divides by the group's standard deviation (GRPO), `none` does not (Dr. GRPO)."""


class TurnGrpoConfig(Section):
    """GRPO over episodes of several turns; the members of a group share the episode's seed."""

    method: Literal["turn_grpo"] = "turn_grpo"
    credit: Literal["episode", "turn"] = "turn"
    """Return of a reply: the whole episode's (as published), or the rewards from it on."""
    discount: Share = 1.0
    """Factor per turn on rewards that come later, 0 for none of them; only with credit `turn`."""
    scale: Literal["none", "std"] = "none"
    """`std` divides by the standard deviation of the returns that are compared."""

    @model_validator(mode="after")
    def _discounts_something(self) -> TurnGrpoConfig:
        if self.credit == "episode" and self.discount != 1:
            raise ValueError(
                f"algorithm.discount {self.discount} needs algorithm.credit 'turn'; with 'episode' "
                "every reply gets the same return"
            )
        return self


class ReaConfig(ShapingConfig):
    """REA-RL: originals and revisions in one group. Nothing but accuracy is left of it with
    `length: none`, `reflection: null` and no revision: that is GRPO."""

    method: Literal["rea"] = "rea"
    tail_loss: Literal["none", "mean", "max"] = "none"
    """Hold the removed tail once more against the thought, with the mean or the largest absolute
    advantage of the group (the released code takes it over the whole batch)."""


Algorithm = Annotated[
    BrpoConfig | GrpoConfig | ReaConfig | TurnGrpoConfig, Field(discriminator="method")
]


class LossConfig(Section):
    """The clipped surrogate and what is added to it."""

    clip_low: Fraction = 0.2
    clip_high: PositiveFloat = 0.2
    aggregation: Literal["constant", "token_mean", "sequence_mean"] = "constant"
    """Divide by episodes x `constant`, by trained tokens, or by each episode's own tokens."""
    constant: PositiveInt | None = None
    """Tokens per episode that `constant` divides by; None takes the largest possible episode."""
    kl_coefficient: NonNegativeFloat = 0.0
    """k3 estimate of the KL divergence to the frozen starting policy."""
    entropy_coefficient: NonNegativeFloat = 0.0
    importance_cap: PositiveFloat = 2.0
    """Truncation of the importance weight between engine and learner (TIS)."""
