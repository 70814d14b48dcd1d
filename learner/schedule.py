"""The learning rate as a pure function of the step, so resuming needs no scheduler state."""

from __future__ import annotations

import math

from rlsys.config import OptimizerConfig


def learning_rate(step: int, config: OptimizerConfig, total_steps: int) -> float:
    """Return the learning rate of optimizer step `step`, counted from 0.

    The rate rises linearly over `warmup_steps`, reaching its full value at step `warmup_steps - 1`.
    Over the rest of `total_steps` it stays (constant), or falls towards 0 in a straight line
    (linear) or half a cosine (cosine); steps past the end keep the last value.

    Example: learning_rate(5, OptimizerConfig(learning_rate=1.0, schedule="linear"), 10) == 0.5
    """
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    length = max(total_steps - config.warmup_steps, 1)
    progress = min((step - config.warmup_steps) / length, 1.0)
    match config.schedule:
        case "constant":
            factor = 1.0
        case "linear":
            factor = 1.0 - progress
        case "cosine":
            factor = 0.5 * (1.0 + math.cos(math.pi * progress))
    return config.learning_rate * factor
