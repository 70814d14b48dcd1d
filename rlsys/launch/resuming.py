"""What is known about resuming before Ray starts."""

from __future__ import annotations

from collections.abc import Callable

from rlsys.config import RunConfig
from rlsys.training.checkpoints import Checkpoint


def check_layout(config: RunConfig, resumed: Checkpoint, tell: Callable[[str], None]) -> None:
    """Tell the user if the learner's state is divided anew.

    Raises CheckpointError if the checkpoint does not record how it is divided.
    """
    from learner.layout import planned_layout, written_layout

    written = written_layout(resumed.learner)
    planned = planned_layout(config.learner, config.model.dtype)
    if written != planned:
        tell(
            f"the checkpoint of step {resumed.step} was written by {written}; its weights and its "
            f"optimizer state are divided anew for {planned}, so the run goes on with the same "
            "numbers up to rounding"
        )
