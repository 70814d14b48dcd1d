"""Finished groups as bytes and back, without pickle: a checkpoint holds data, never code.

MessagePack through msgspec, which checks every field against the records of rlsys.types. Arrays are
an extension type: dtype, shape and raw little-endian bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from rlsys.errors import CheckpointError
from rlsys.types import GroupReport, Sample

ARRAY: Final = 1
"""Code of the extension type."""
DTYPES: Final = ("int8", "int32", "int64", "float32", "float64", "bool")
"""Array types that records hold; anything else is no file of ours."""


class StoredGroup(NamedTuple):
    """A group that was rolled out and not trained yet."""

    ticket: int
    """Its place in the admission order."""
    report: GroupReport
    samples: tuple[Sample, ...]


class _Header(NamedTuple):
    dtype: str
    shape: tuple[int, ...]


def encode_groups(groups: Sequence[StoredGroup]) -> bytes:
    """Return the groups as bytes."""
    return msgspec.msgpack.Encoder(enc_hook=_array_out).encode(list(groups))


def decode_groups(data: bytes) -> list[StoredGroup]:
    """Return the groups of `encode_groups`.

    Raises CheckpointError if the bytes are anything else.
    """
    decoder = msgspec.msgpack.Decoder(
        list[StoredGroup], dec_hook=_array_in, ext_hook=_array_extension
    )
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, ValueError, TypeError) as error:
        raise CheckpointError(f"not the finished groups of a checkpoint ({error})") from error


def _array_out(value: Any) -> msgspec.msgpack.Ext:
    if isinstance(value, np.generic):
        value = np.asarray(value)
    if not isinstance(value, np.ndarray) or value.dtype.name not in DTYPES:
        raise NotImplementedError(f"{type(value).__name__} is no record of rlsys.types")
    plain = np.ascontiguousarray(value)
    header = msgspec.msgpack.encode(_Header(plain.dtype.name, value.shape))
    return msgspec.msgpack.Ext(ARRAY, len(header).to_bytes(2, "little") + header + plain.tobytes())


def _array_extension(code: int, data: memoryview) -> NDArray[Any]:
    if code != ARRAY:
        raise ValueError(f"unknown extension type {code}")
    end = 2 + int.from_bytes(data[:2], "little")
    header = msgspec.msgpack.decode(data[2:end], type=_Header)
    if header.dtype not in DTYPES:
        raise ValueError(f"unknown array type {header.dtype!r}")
    # Copied, since records outlive the buffer and are put into shared memory.
    return np.frombuffer(data[end:], header.dtype).reshape(header.shape).copy()


def _array_in(kind: Any, value: Any) -> Any:
    """Arrays arrive as such from the extension type; nothing else has a type of its own."""
    if isinstance(value, np.ndarray):
        return value
    raise ValueError(f"{type(value).__name__} in the place of an array")
