"""Rows of Parquet and Arrow files and of folders that `datasets.save_to_disk` wrote.

Parquet and Arrow are read by pyarrow, as `datasets` does, yet without a copy in its cache.
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from rlsys.data.cells import Row, WrittenFloat
from rlsys.data.locations import DataFile
from rlsys.errors import DataError

if TYPE_CHECKING:
    import pyarrow

_BATCH = 1000
"""Rows turned into Python values at a time."""


def binary_rows(
    shown: str, kind: Literal["Parquet", "Arrow"], stream: io.BufferedIOBase
) -> Iterator[Row]:
    """Yield the rows of an open Parquet or Arrow file (Feather and stream format alike).

    Raises DataError for a damaged file or two columns of one name.
    """
    import pyarrow

    try:
        # Both formats are read from their end, which gzip cannot jump to.
        file = io.BytesIO(stream.read()) if isinstance(stream, gzip.GzipFile) else stream
        batches = _parquet_batches(file) if kind == "Parquet" else _arrow_batches(file)
        yield from numbered_rows(shown, batches)
    except (OSError, EOFError, ValueError, pyarrow.ArrowException) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(
            f"data file {shown!r} is not readable {kind} ({_short(error)}); fetch the file again"
        ) from error


def saved_rows(file: DataFile) -> Iterator[Row]:
    """Yield the rows of a `save_to_disk` folder: a Dataset, or a DatasetDict of one split.

    Raises DataError for a damaged folder, and for several splits.
    """
    import datasets
    import pyarrow

    try:
        data = datasets.load_from_disk(file.filesystem.unstrip_protocol(file.path))
        if isinstance(data, dict):
            if len(data) != 1:
                raise DataError(
                    f"folder {file.shown!r} holds the splits {', '.join(data)}; name one of them, "
                    f"for instance {file.shown.rstrip('/')}/{next(iter(data), 'train')}"
                )
            (data,) = data.values()
        yield from numbered_rows(file.shown, arrow_batches(data))
    except (OSError, ValueError, KeyError, TypeError, pyarrow.ArrowException) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(
            f"folder {file.shown!r} is not a readable folder of datasets.save_to_disk "
            f"({_short(error)}); write it again"
        ) from error


def _parquet_batches(file: Any) -> Iterator[pyarrow.RecordBatch]:
    from pyarrow import parquet

    yield from parquet.ParquetFile(file).iter_batches(batch_size=_BATCH)


def _arrow_batches(file: io.BufferedIOBase) -> Iterator[pyarrow.RecordBatch]:
    from pyarrow import ipc

    start = file.read(6)
    file.seek(0)
    if start != b"ARROW1":
        yield from ipc.open_stream(file)
        return
    reader = ipc.open_file(file)
    yield from map(reader.get_batch, range(reader.num_record_batches))


def arrow_batches(data: Any) -> Iterator[pyarrow.Table]:
    """Yield a `datasets.Dataset` as tables of some rows each."""
    yield from data.with_format("arrow").iter(batch_size=_BATCH)


def numbered_rows(
    shown: str, tables: Iterator[pyarrow.RecordBatch | pyarrow.Table]
) -> Iterator[Row]:
    """Yield the rows of pyarrow tables or record batches, numbered from 1 through all of them.

    Raises DataError for two columns of one name.
    """
    number = 0
    for table in tables:
        names = table.schema.names
        if len(set(names)) < len(names):
            raise DataError(f"{shown}: two columns have one name among {', '.join(names)}")
        for cells in zip(*map(_values, table.columns), strict=True):
            number += 1
            yield Row(f"{shown}, row {number}", dict(zip(names, cells, strict=True)))


def _values(column: Any) -> list[Any]:
    """Return Python values; 0.1 in 32 bits stays 0.1 and does not become 0.10000000149011612."""
    from pyarrow import types

    if types.is_float32(column.type) or types.is_float16(column.type):
        texts = column.cast("string").to_pylist()
        return [None if text is None else WrittenFloat(text) for text in texts]
    values: list[Any] = column.to_pylist()
    return values


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
