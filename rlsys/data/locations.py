"""Which files a path of the configuration names: a file, a folder, a glob or an fsspec URL."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from glob import has_magic
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from rlsys.errors import DataError

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

FileKind = Literal[
    "JSON lines", "JSON", "CSV", "TSV", "Parquet", "Arrow", "folder of datasets.save_to_disk"
]

SUFFIXES: Final[dict[str, FileKind]] = {
    ".jsonl": "JSON lines",
    ".ndjson": "JSON lines",
    ".json": "JSON",
    ".csv": "CSV",
    ".tsv": "TSV",
    ".parquet": "Parquet",
    ".arrow": "Arrow",
}
"""Ending of a file's name, in small letters and without `.gz`, to what it holds."""

_NOT_DATA: Final = {"config.json", "dataset_info.json", "dataset_infos.json", "state.json"}
"""JSON files beside data files that describe them."""


class DataFile(NamedTuple):
    """One file of rows, or one folder of `datasets.save_to_disk`."""

    filesystem: AbstractFileSystem
    """The fsspec file system that holds it."""
    path: str
    """Its path there."""
    shown: str
    """How an error names it: as the configuration does, where that names one file."""
    kind: FileKind


def find_files(path: str) -> list[DataFile]:
    """Return the files that `path` names: itself, a folder's files or a glob's, sorted by name.

    Raises DataError for what does not exist or cannot be reached, a file of an unknown kind, and a
    folder whose files are of several kinds or splits.
    """
    with _reachable(path):
        filesystem, inner = _filesystem(path)
        # A file may be named `a[1].json`, so a glob is what no file is called.
        if filesystem.isfile(inner):
            return [_file(filesystem, inner, path)]
        if filesystem.isdir(inner):
            return _folder_files(filesystem, inner, path)
        found = sorted(filesystem.glob(inner)) if has_magic(inner) else []
    files = [file for name in found for file in find_files(_shown(filesystem, name))]
    if not files:
        raise DataError(_missing(path))
    return files


def _filesystem(path: str) -> tuple[AbstractFileSystem, str]:
    from fsspec.core import url_to_fs

    filesystem, inner = url_to_fs(path if "://" in path else os.path.expanduser(path))
    return filesystem, inner


@contextmanager
def _reachable(path: str) -> Iterator[None]:
    try:
        yield
    except DataError:
        raise
    except Exception as error:  # every file system of fsspec raises errors of its own library
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(
            f"data file {path!r} cannot be reached ({reason}); correct data.*.path"
        ) from error


def _shown(filesystem: AbstractFileSystem, path: str) -> str:
    local = "file" in filesystem.protocol
    return path if local else str(filesystem.unstrip_protocol(path))


def _kind(name: str) -> FileKind | None:
    base = name.rpartition("/")[2].partition("?")[0].lower().removesuffix(".gz")
    return SUFFIXES.get(os.path.splitext(base)[1])


def _file(filesystem: AbstractFileSystem, path: str, shown: str) -> DataFile:
    kind = _kind(path)
    if kind is None:
        raise DataError(
            f"data file {shown!r} is of no known kind; convert it, or rename it to what it holds, "
            f"one of {', '.join(SUFFIXES)}, each also with .gz"
        )
    return DataFile(filesystem, path, shown, kind)


def _folder_files(filesystem: AbstractFileSystem, folder: str, shown: str) -> list[DataFile]:
    names = {name.rstrip("/").rpartition("/")[2] for name in filesystem.ls(folder, detail=False)}
    if "dataset_dict.json" in names or {"state.json", "dataset_info.json"} <= names:
        return [DataFile(filesystem, folder, shown, "folder of datasets.save_to_disk")]
    files = []
    for path in sorted(filesystem.find(folder)):
        parts = path[len(folder) :].strip("/").split("/")
        hidden = any(part.startswith((".", "_")) for part in parts)
        kind = _kind(path)
        if kind is not None and not hidden and parts[-1] not in _NOT_DATA:
            files.append(DataFile(filesystem, path, _shown(filesystem, path), kind))
    if not files:
        raise DataError(
            f"folder {shown!r} holds no data file; its files must end in one of "
            f"{', '.join(SUFFIXES)}, each also with .gz"
        )
    _refuse_mixture(files, folder, shown)
    return files


def _refuse_mixture(files: Iterable[DataFile], folder: str, shown: str) -> None:
    """Read as one, a folder of train and test files would train on the test set."""
    kinds = sorted({file.kind.removesuffix(" lines") for file in files})
    splits = sorted({s for file in files if (s := _split_of(file.path[len(folder) :]))})
    for several, what in ((kinds, "files of several kinds"), (splits, "several splits")):
        if len(several) > 1:
            raise DataError(
                f"folder {shown!r} holds {what} ({', '.join(several)}); name the wanted files, "
                f"for instance with a glob such as {shown.rstrip('/')}/train*"
            )


def _split_of(path: str) -> str | None:
    """Return the split that a file's or folder's name states, by the words `datasets` knows."""
    from datasets.data_files import SPLIT_KEYWORDS

    words = set(re.split(r"[-._ /0-9]+", path.lower()))
    return next((str(s) for s, known in SPLIT_KEYWORDS.items() if words & set(known)), None)


def _missing(path: str) -> str:
    if has_magic(path):
        return f"no data file matches {path!r}; correct data.*.path"
    hub = (
        f", or set data.*.source=hub data.*.name={path} if it is a Hugging Face data set"
        if re.fullmatch(r"[\w-]+/[\w-]+", path)
        else ""
    )
    return (
        f"data file {path!r} does not exist; correct data.*.path{hub}, or make the file (a "
        "recipe that reads generated data says how in its first lines)"
    )
