"""Files that ship with rlsys."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from rlsys.errors import ModelError

SHIPPED: Final = ("tiny", "tiny-economics", "tiny-reflective", "tiny-reflection")
"""What `model.path` may name without a folder: the arithmetic reasoner, the same after it learned
the form of dialogues about a shared budget, the same after it learned to check its steps, and a
reflection model that reads the thoughts of that one."""


def shipped_path(name: str) -> Path:
    """Folder of a model that ships.

    Raises ModelError if this installation lacks it.
    """
    folder = Path(__file__).parent / name
    if not (folder / "model.safetensors").is_file():
        raise ModelError(
            f"model.path {name!r} needs {folder / 'model.safetensors'}, which is missing here; "
            "install rlsys again, or train the model anew with rlsys sft"
        )
    return folder
