"""The working directory of a submitted job: the configuration, and the files that it names.

A relative path of the configuration is taken from the folder in which the command is started. What
it names goes with the job. An absolute path or a URL must be readable on the nodes of the cluster.
"""

from __future__ import annotations

import glob
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

from rlsys.config import RunConfig
from rlsys.config.base import Section
from rlsys.config.loading import dump_config
from rlsys.errors import ConfigError
from rlsys.reporting.metrics_file import METRICS

CONFIG: Final = "config.yaml"
"""Name of the resolved configuration in the working directory."""
LIMIT_BYTES: Final = 100 << 20
"""Ray keeps the package in the memory of the head node."""
IGNORED: Final = frozenset({"__pycache__", "node_modules", "runs", "site-packages", "venv"})
"""Folders that are left out, like all names that begin with a dot."""
OWN: Final = frozenset({"rlsys", "actors", "learner"})
"""Packages of rlsys. Every node has them installed, and a part of them must not hide those."""


class Package(NamedTuple):
    """A working directory that is ready to be sent."""

    folder: Path
    files: int
    size: int
    """Bytes."""
    digest: str
    """Hash of names and contents: two equal submissions have the same."""


@contextmanager
def packed(config: RunConfig, root: Path) -> Iterator[Package]:
    """Copy what the job needs from below `root` into a temporary folder for the time of the block.

    Raises ConfigError: a relative path leads out of `root`, or the files are too large.
    """
    wanted = dict(sorted(_files(config, root).items()))
    _check_size(wanted)
    with tempfile.TemporaryDirectory(prefix="rlsys-submit-") as name:
        folder, digest = Path(name), sha256()
        (folder / CONFIG).write_text(dump_config(config), encoding="utf-8")
        for relative, file in wanted.items():
            (folder / relative).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, folder / relative)
        sizes = []
        for relative in (CONFIG, *wanted):
            content = (folder / relative).read_bytes()
            digest.update(f"{relative}\0{len(content)}\0".encode() + content)
            sizes.append(len(content))
        yield Package(folder, len(sizes), sum(sizes), digest.hexdigest()[:16])


def named_paths(section: Section, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Key and value of every input path of a configuration; URLs are left out.

    A name of the Hugging Face hub looks like a relative path and is returned as well.
    """
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, Section):
            yield from named_paths(value, f"{prefix}{name}.")
        elif name != "run_dir":
            for item in value if isinstance(value, tuple) else (value,):
                known = isinstance(item, Path) or (name == "path" and isinstance(item, str))
                if known and "://" not in str(item):
                    yield f"{prefix}{name}", str(item)


def _files(config: RunConfig, root: Path) -> dict[str, Path]:
    """Files of the package by their name relative to `root`."""
    found: list[Path] = []
    for key, value in named_paths(config):
        if os.path.isabs(value):
            continue
        for name in glob.glob(value, root_dir=root, recursive=True):
            path = root / name
            if not path.resolve().is_relative_to(root.resolve()) and ".." in Path(name).parts:
                raise ConfigError(
                    f"{key} {value!r} lies outside of {str(root)!r}, the folder that goes with the "
                    "job; start the command in a folder above it, or give an absolute path that "
                    "the nodes of the cluster can read"
                )
            # Of a run that serves as reference, only the numbers are read.
            found.append(path / METRICS if key.endswith("reference") else path)
    found += _modules(root)
    return {str(file.relative_to(root)): file for path in found for file in _below(path)}


def _modules(root: Path) -> set[Path]:
    """Modules and packages in `root` that loading the configuration has imported.

    These are the user's environments and algorithms, which the configuration names by import path.
    """
    found = set()
    for name, module in list(sys.modules.items()):
        file = Path(getattr(module, "__file__", None) or "built in")
        # A library can lie below `root` as well, but then it was not imported from `root` itself.
        place = root.joinpath(*name.split("."))
        if file.with_suffix("") in (place, place / "__init__"):
            top = file.relative_to(root).parts[0]
            if name.split(".")[0] not in OWN:
                found.add(root / top)
    return found


def _below(path: Path) -> Iterator[Path]:
    """The files of a folder, or the file itself."""
    if path.is_file():
        yield path
    elif path.is_dir():
        for file in path.rglob("*"):
            if file.is_file() and not _ignored(file.relative_to(path)):
                yield file


def _ignored(relative: Path) -> bool:
    return any(part in IGNORED or part.startswith(".") for part in relative.parts)


def _check_size(files: dict[str, Path]) -> None:
    sizes = {name: file.stat().st_size for name, file in files.items()}
    if sum(sizes.values()) <= LIMIT_BYTES:
        return
    largest = sorted(sizes, key=sizes.__getitem__, reverse=True)[:5]
    listed = ", ".join(f"{name} ({mib(sizes[name])})" for name in largest)
    raise ConfigError(
        f"the files that the configuration names have {mib(sum(sizes.values()))}, and a job takes "
        f"at most {mib(LIMIT_BYTES)} with it; the largest are {listed}; copy them to where every "
        "node can read them, and give the absolute path"
    )


def mib(size: int) -> str:
    """A number of bytes in words. Example: mib(3 << 19) == "1.5 MiB"."""
    return f"{size / (1 << 20):,.1f} MiB"


def missing_here(config: RunConfig) -> Iterable[str]:
    """Return the absolute paths of the configuration that this machine does not have."""
    paths = [value for _, value in named_paths(config) if os.path.isabs(value)]
    return [path for path in paths if not glob.glob(path, recursive=True)]
