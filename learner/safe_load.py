"""DeepSpeed's files, read as data: no code of a file is run.

DeepSpeed reads its files with `weights_only=False`, as pickles that may call any function. What
they hold beside tensors and plain values are the records named here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from rlsys.errors import CheckpointError

# numpy's random state
ARRAY: Final = [np.ndarray, np.dtype, np.dtypes.UInt32DType, np._core.multiarray._reconstruct]  # type: ignore[attr-defined]


def load_model_states(path: str | Path) -> dict[str, Any]:
    """Read what DeepSpeed saved of the model, and the counters. Tensors stay on the disk."""
    with torch.serialization.safe_globals(ARRAY):
        states: dict[str, Any] = torch.load(path, "cpu", mmap=True, weights_only=True)
        return states


def load_states(path: str | Path, map_location: Any = None, *, mapped: bool = False) -> Any:
    """Read any file of DeepSpeed's.

    Args:
        path: the file.
        map_location: as for torch.load.
        mapped: True to leave tensors on the disk until they are used.
    """
    from deepspeed.runtime.fp16.loss_scaler import LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    with torch.serialization.safe_globals([LossScaler, ZeroStageEnum, fragment_address, *ARRAY]):
        return torch.load(path, map_location, mmap=mapped, weights_only=True)


def unreadable(folder: Path, error: Exception) -> CheckpointError:
    """Return the sentence about a file in `folder` that torch refuses to read."""
    cause = (str(error).strip().splitlines() or [repr(error)])[0]
    return CheckpointError(
        f"a file of the learner checkpoint at {folder} is damaged, or holds code, which is never "
        f"run ({cause}); move the checkpoint away to go on from the one before"
    )
