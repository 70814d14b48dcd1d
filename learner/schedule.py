"""The learning rate as a pure function of the step, so resuming needs no scheduler state."""

from __future__ import annotations

import math

from rlsys.config import OptimizerConfig


def learning_rate(step: int, config: OptimizerConfig, total_steps: int) -> float:
    """Return the learning rate of optimizer step `step`, counted from 0.

    The rate rises linearly over the warm-up, `warmup_steps` or `warmup_ratio` of `total_steps`, and
    has its full value at the last step of it.
    Over the rest of `total_steps` it stays (constant), or falls towards 0 in a straight line
    (linear) or half a cosine (cosine); steps past the end keep the last value.

    Example: learning_rate(5, OptimizerConfig(learning_rate=1.0, schedule="linear"), 10) == 0.5
    """
    warmup = config.warmup_steps or math.ceil(config.warmup_ratio * total_steps)
    if step < warmup:
        return config.learning_rate * (step + 1) / warmup
    length = max(total_steps - warmup, 1)
    progress = min((step - warmup) / length, 1.0)
    match config.schedule:
        case "constant":
            factor = 1.0
        case "linear":
            factor = 1.0 - progress
        case "cosine":
            factor = 0.5 * (1.0 + math.cos(math.pi * progress))
    return config.learning_rate * factor
