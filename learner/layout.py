"""How the learner's state is divided: over how many ranks, and at which ZeRO stage."""

from __future__ import annotations

from pathlib import Path
from pickle import UnpicklingError
from typing import Final, Literal, NamedTuple

from learner.safe_load import load_model_states, unreadable
from rlsys.config import LearnerConfig
from rlsys.errors import CheckpointError

TAG: Final = "ranks"
"""DeepSpeed's name for the only state inside a checkpoint folder."""


class Layout(NamedTuple):
    """A division of weights, gradients and optimizer state."""

    ranks: int
    stage: int
    """The ZeRO stage as it runs; see `planned_layout`."""

    def __str__(self) -> str:
        ranks = "1 rank" if self.ranks == 1 else f"{self.ranks} ranks"
        return f"{ranks} at ZeRO stage {self.stage}"


def planned_layout(config: LearnerConfig, dtype: Literal["float32", "bfloat16"]) -> Layout:
    """Return the layout in which a run trains; stage 0 in bfloat16 runs as stage 1."""
    stage = max(config.zero_stage, 1) if dtype == "bfloat16" else config.zero_stage
    return Layout(config.ranks, stage)


def written_layout(folder: Path) -> Layout:
    """Return the layout that wrote the learner checkpoint in `folder`; cheap, it reads no tensor.

    Raises CheckpointError: there is no checkpoint, or one that does not record its layout.
    """
    if not (folder / TAG).is_dir():
        raise CheckpointError(
            f"there is no learner checkpoint at {folder}; check the run directory"
        )
    try:
        states = load_model_states(model_states(folder))
    except (OSError, RuntimeError, UnpicklingError) as error:
        raise unreadable(folder, error) from error
    try:
        stage = states["ds_config"]["zero_optimization"]["stage"]
        return Layout(int(states["dp_world_size"]), int(stage))
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"the learner checkpoint at {folder} does not record its ranks and its ZeRO stage "
            f"({error!r}); resume with the version of rlsys that wrote it, or give another run_dir "
            "for a new run"
        ) from error


def model_states(folder: Path) -> Path:
    """Return the file with what rank 0 saved of the model, and with the counters."""
    whole = folder / TAG / "mp_rank_00_model_states.pt"
    # At stage 3 every rank writes a file of its own.
    return whole if whole.exists() else folder / TAG / "zero_pp_rank_0_mp_rank_00_model_states.pt"
