"""Files that ship with rlsys."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from rlsys.errors import ModelError

SHIPPED: Final = ("tiny", "tiny-economics", "tiny-reflective", "tiny-reflection")
"""What `model.path` may name without a folder: the arithmetic reasoner, the same after it learned
the form of dialogues about a shared budget, the same after it learned to check its steps, and a
reflection model that reads the thoughts of that one."""

CONFIGS: Final = Path(__file__).parent / "configs"
"""The configurations of the repository's folder configs/, which this links to."""


def shipped_config(name: str) -> Path | None:
    """Path of the configuration with this name (`demo` for demo.yaml); None if none ships so."""
    path = CONFIGS / f"{name}.yaml"
    return path if name.isidentifier() and path.is_file() else None


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
