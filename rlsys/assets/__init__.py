"""Files that ship with rlsys."""

from __future__ import annotations

from pathlib import Path

from rlsys.errors import ModelError


def tiny_path() -> Path:
    """Folder of the trained arithmetic reasoner; what `model.path: tiny` stands for.

    Raises ModelError if this installation lacks it.
    """
    folder = Path(__file__).parent / "tiny"
    if not (folder / "model.safetensors").is_file():
        raise ModelError(
            f"model.path 'tiny' needs {folder / 'model.safetensors'}, which is missing here; "
            "install rlsys again, or train the model anew with rlsys sft"
        )
    return folder
