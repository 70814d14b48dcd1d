"""Weight files of a model folder: whole, downloaded and of the right length."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from rlsys.errors import ModelError

_POINTER: Final = b"version https://git-lfs"
"""First bytes of the text file that Git LFS leaves in place of a file it did not download."""
_LARGE_FILES: Final = ("*.safetensors", "*.bin", "*.json", "*.model", "*.jinja")
_INDEX_FILES: Final = ("model.safetensors.index.json", "pytorch_model.bin.index.json")


def check_files(folder: Path, key: str) -> None:
    """Raise ModelError if files of a model folder are missing, Git LFS pointers or cut off.

    `key` is the configuration key of the folder, for errors. Only headers of weight files are read.
    """
    for pattern in _LARGE_FILES:
        for file in sorted(folder.glob(pattern)):
            with file.open("rb") as opened:
                if opened.read(len(_POINTER)) == _POINTER:
                    raise ModelError(
                        f"{file} of {key} is a Git LFS pointer and not the file itself; run "
                        f"`git lfs pull` in {str(folder)!r}, or download the model again"
                    )
    for name in _INDEX_FILES:
        if (index := folder / name).is_file():
            _check_shards(index, key)
    for file in sorted(folder.glob("*.safetensors")):
        _check_length(file, key)


def _check_shards(index: Path, key: str) -> None:
    shards = set(read_json(index, key).get("weight_map", {}).values())
    missing = sorted(shard for shard in shards if not (index.parent / shard).is_file())
    if missing:
        raise ModelError(
            f"{index} of {key} names {len(shards)} weight files, of which {len(missing)} are "
            f"missing ({', '.join(missing[:3])}{', ...' * (len(missing) > 3)}); download the model "
            "again"
        )


def _check_length(file: Path, key: str) -> None:
    """Compare the length of a safetensors file with the one that its header states."""
    size = file.stat().st_size
    with file.open("rb") as opened:
        # The format: 8 bytes with the length of the header, the header as JSON, the tensors.
        length = int.from_bytes(opened.read(8), "little")
        header = opened.read(length) if 0 < length <= size - 8 else b""
    try:
        tensors = json.loads(header)
        ends = [v["data_offsets"][1] for k, v in tensors.items() if k != "__metadata__"]
    except (ValueError, KeyError, TypeError, AttributeError):
        whole = False
    else:
        whole = size == 8 + length + max(ends, default=0)
    if not whole:
        raise ModelError(
            f"{file} of {key} is damaged or not whole ({size:,} bytes); download the model again"
        )


def read_json(file: Path, key: str) -> dict[str, Any]:
    """Return the object of a JSON file of a model folder. Raises ModelError if it has none."""
    try:
        value = json.loads(file.read_text("utf-8"))
    except ValueError as error:
        raise ModelError(f"{file} of {key} is not JSON ({error}); download it again") from error
    if not isinstance(value, dict):
        raise ModelError(f"{file} of {key} holds no JSON object; download it again")
    return value
