"""Writes a folder that is a complete OpenEnv package, for `openenv push`, `build` and `validate`.

The environment's own folder has the structure that OpenEnv expects, but its server also imports
other parts of rlsys. A Docker build of that folder alone would lack them.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import rlsys
from rlsys.errors import DataError

ECONOMICS = Path(__file__).parents[1]
_SKIPPED = shutil.ignore_patterns("__pycache__")


def stage(folder: Path) -> None:
    """Write the package to `folder`: the environment's files, and rlsys beside them.

    Raises DataError if the folder exists and is not empty.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError(f"{folder} exists and is not an empty folder; name a new one")
    package = Path(rlsys.__path__[0])
    shutil.copytree(ECONOMICS, folder, ignore=_SKIPPED, dirs_exist_ok=True)
    shutil.copytree(package, folder / "rlsys", ignore=_SKIPPED)
