"""The loss: surrogate, correction for the engine, KL divergence and normalisation."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from rlsys.config.base import Fraction, NonNegativeFloat, Section


class LossConfig(Section):
    """The clipped surrogate and what is added to it."""

    surrogate: Literal["ppo", "gspo", "cispo"] = "ppo"
    """`ppo` clips the ratio of each token, `gspo` the ratio of the whole response (arXiv
    2507.18071, where clip_low is 3e-4 and clip_high 4e-4), `cispo` clips the ratio as a constant
    weight, so that every token keeps a gradient (arXiv 2506.13585, where clip_low is 1)."""
    clip_low: Fraction = 0.2
    clip_high: PositiveFloat = 0.2
    dual_clip: Annotated[float, Field(gt=1)] | None = None
    """Largest ratio that counts where the advantage is negative (arXiv 1912.09729, where it is 3).
    None sets no limit."""
    aggregation: Literal["constant", "token_mean", "sequence_mean"] = "constant"
    """Divide by episodes x `constant`, by trained tokens, or by each episode's own tokens."""
    constant: PositiveInt | None = None
    """Tokens per episode that `constant` divides by; None takes the largest possible episode."""
    normalise_advantages: bool | Literal["whiten"] | None = None
    """Divide the advantages of a training step by their root mean square over all its episodes,
    each episode counting once; `whiten` subtracts their mean first. None takes what the method asks
    for: true for `dler`, `whiten` for `reinforce++`, else false."""
    kl_coefficient: NonNegativeFloat = 0.0
    """Factor on the KL divergence to the frozen starting policy, as `kl_estimator` estimates it."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """`k3` is never negative, `k2` is half the squared log ratio. The mean gradient of `k1`, the
    plain log ratio, is 0: it only adds noise, and is here for comparisons."""
    kl_in: Literal["loss", "reward"] = "loss"
    """`loss` adds the estimate to the loss of every token. `reward` subtracts it from the rewards:
    a token pays for itself and for the tokens after it. Use `kl_estimator: k1` then: the gradient
    of the others is biased."""
    entropy_coefficient: NonNegativeFloat = 0.0
    importance: Literal["truncate", "icepop", "sequence_truncate", "sequence_mask", "none"] = (
        "truncate"
    )
    """Correction for the difference between engine and learner. With w = learner / engine:
    `truncate` weighs a token by min(w, cap) (TIS), `sequence_truncate` by min(product of w over the
    episode, cap); `icepop` removes tokens whose w is outside [floor, cap] (arXiv 2510.18855, with
    0.5 and 5), `sequence_mask` episodes whose geometric mean of w is outside. `none` corrects
    nothing, as code that does not use the log-probs of the engine."""
    importance_cap: Annotated[float, Field(gt=0, allow_inf_nan=True)] = 2.0
    """Upper limit of the importance weight between engine and learner; .inf sets none."""
    importance_floor: NonNegativeFloat | None = None
    """Lower limit, required by `icepop` and `sequence_mask`."""

    @model_validator(mode="after")
    def _corrects_something(self) -> LossConfig:
        masks = self.importance in ("icepop", "sequence_mask")
        if masks and self.importance_floor is None:
            raise ValueError(
                f"loss.importance {self.importance!r} needs loss.importance_floor, the smallest "
                "weight that is trained, for instance 0.5"
            )
        if not masks and self.importance_floor is not None:
            raise ValueError(
                f"loss.importance_floor {self.importance_floor:g} has no effect with "
                f"loss.importance {self.importance!r}; leave it out, or use 'icepop' or "
                "'sequence_mask'"
            )
        if (
            self.importance_floor is not None
            and not self.importance_floor < 1 < self.importance_cap
        ):
            raise ValueError(
                f"loss.importance {self.importance!r} would remove tokens on which engine and "
                f"learner agree: 1 is not between importance_floor {self.importance_floor:g} and "
                f"importance_cap {self.importance_cap:g}"
            )
        return self

    @model_validator(mode="after")
    def _has_a_divergence(self) -> LossConfig:
        if self.kl_in == "reward" and not self.kl_coefficient:
            raise ValueError(
                "loss.kl_in 'reward' has no effect with loss.kl_coefficient 0; set a coefficient, "
                "or leave kl_in out"
            )
        return self

    @model_validator(mode="after")
    def _clips_something(self) -> LossConfig:
        if self.dual_clip is not None and self.surrogate != "ppo":
            raise ValueError(
                f"loss.dual_clip {self.dual_clip} needs loss.surrogate 'ppo', and it is "
                f"{self.surrogate!r}; leave dual_clip out"
            )
        return self
