"""Finished groups as bytes and back, without pickle: a checkpoint holds data, never code.

MessagePack through msgspec, which checks every field against the records of rlsys.types. Arrays are
an extension type: dtype, shape and raw bytes. Texts that come from outside are JSON inside, because
MessagePack cannot hold half of a surrogate pair, and a model or a data file may produce one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from rlsys.errors import CheckpointError
from rlsys.types import GroupReport, Sample

ARRAY: Final = 1
"""Code of the extension type."""
NUMBERS: Final = "biuf"
"""Kinds of dtype that records hold: truth values, integers, floats. Never objects."""
HEADER_BYTES: Final = 2
"""Length of the number in front of an array that tells how long its header is."""


class StoredGroup(NamedTuple):
    """A group that was rolled out and not trained yet."""

    ticket: int
    """Its place in the admission order."""
    report: GroupReport
    samples: tuple[Sample, ...]


class _Row(NamedTuple):
    """A StoredGroup in the file."""

    ticket: int
    texts: bytes
    """problem_id and example of the report, which lacks them, as JSON."""
    report: GroupReport
    samples: tuple[Sample, ...]


class _Header(NamedTuple):
    dtype: str
    """As numpy writes it, byte order included: `<f4`."""
    shape: tuple[int, ...]


def encode_groups(groups: Sequence[StoredGroup]) -> bytes:
    """Return the groups as bytes."""
    rows = [
        _Row(
            ticket,
            json.dumps([report.problem_id, report.example]).encode("ascii"),
            replace(report, problem_id="", example={}),
            samples,
        )
        for ticket, report, samples in groups
    ]
    return msgspec.msgpack.Encoder(enc_hook=_array_out).encode(rows)


def decode_groups(data: bytes) -> list[StoredGroup]:
    """Return the groups of `encode_groups`.

    Raises CheckpointError if the bytes are anything else.
    """
    decoder = msgspec.msgpack.Decoder(list[_Row], dec_hook=_array_in, ext_hook=_array_extension)
    try:
        return [_group(row) for row in decoder.decode(data)]
    except (msgspec.DecodeError, ValueError, TypeError, ArithmeticError, RecursionError) as error:
        raise CheckpointError(f"not the finished groups of a checkpoint ({error})") from error


def _group(row: _Row) -> StoredGroup:
    problem_id, example = json.loads(row.texts)
    if not isinstance(problem_id, str) or not isinstance(example, dict):
        raise ValueError("no texts of a report")
    report = replace(row.report, problem_id=problem_id, example=example)
    return StoredGroup(row.ticket, report, row.samples)


def _array_out(value: object) -> msgspec.msgpack.Ext | int | float | bool:
    if isinstance(value, np.generic) and value.dtype.kind in NUMBERS:
        # A numpy number in the place of a plain one, for instance in GroupReport.sizes.
        plain: int | float | bool = value.item()
        return plain
    if not isinstance(value, np.ndarray) or value.dtype.kind not in NUMBERS:
        raise NotImplementedError(f"{type(value).__name__} is no record of rlsys.types")
    header = msgspec.msgpack.encode(_Header(value.dtype.str, value.shape))
    length = len(header).to_bytes(HEADER_BYTES, "little")
    return msgspec.msgpack.Ext(ARRAY, length + header + value.tobytes())


def _array_extension(code: int, data: memoryview) -> NDArray[Any]:
    if code != ARRAY:
        raise ValueError(f"unknown extension type {code}")
    end = HEADER_BYTES + int.from_bytes(data[:HEADER_BYTES], "little")
    header = msgspec.msgpack.decode(data[HEADER_BYTES:end], type=_Header)
    # Checked as text, because numpy parses a dtype of several fields with Python's own parser.
    if not re.fullmatch(rf"[<>|][{NUMBERS}]\d+", header.dtype) or min(header.shape, default=0) < 0:
        raise ValueError(f"no array of numbers: {header.dtype!r} of shape {header.shape}")
    # Copied, since records outlive the buffer and are put into shared memory.
    return np.frombuffer(data[end:], header.dtype).reshape(header.shape).copy()


def _array_in(kind: type, value: object) -> object:
    """Arrays arrive as such from the extension type; nothing else has a type of its own."""
    if isinstance(value, np.ndarray):
        return value
    raise ValueError(f"{type(value).__name__} in the place of an array")
