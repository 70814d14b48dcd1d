"""Finished groups of checkpoints of format 1, which are pickles.

A pickle may name any function of Python and call it. This reader knows the record classes and the
functions that numpy needs for its arrays; a file that names anything else is refused.
"""

from __future__ import annotations

import io
import pickle
from dataclasses import fields
from typing import Any, Final

from rlsys.errors import CheckpointError
from rlsys.training.group_codec import StoredGroup
from rlsys.types import GroupReport, Sample

ADMITTED: Final = {
    *(("rlsys.types", name) for name in ("GroupReport", "Sample", "Segment", "Kind")),
    ("rlsys.environments.report", "GroupReport"),  # its place in earlier versions
    *(("numpy._core.multiarray", name) for name in ("_reconstruct", "scalar")),
    *(("numpy.core.multiarray", name) for name in ("_reconstruct", "scalar")),
    *(("numpy", name) for name in ("ndarray", "dtype")),
}
"""Module and name of all that such a file may refer to."""


class _RecordUnpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> Any:
        if (module_name, global_name) not in ADMITTED:
            raise pickle.UnpicklingError(
                f"it refers to {module_name}.{global_name}, which is no record of rlsys"
            )
        return super().find_class(module_name, global_name)


def decode_old_groups(data: bytes) -> list[StoredGroup]:
    """Return the groups of a groups.pkl.

    Raises CheckpointError if the bytes are anything else.
    """
    try:
        rows = _RecordUnpickler(io.BytesIO(data)).load()
        groups = [StoredGroup(ticket, _complete(report), of) for ticket, report, of in rows]
    except Exception as error:  # a damaged pickle may raise anything
        raise CheckpointError(f"not the finished groups of a checkpoint ({error})") from error
    for group in groups:
        known = isinstance(group.report, GroupReport) and isinstance(group.ticket, int)
        if not known or not all(isinstance(sample, Sample) for sample in group.samples):
            raise CheckpointError("not the finished groups of a checkpoint (no such records)")
    return groups


def _complete(report: Any) -> Any:
    """Give a report the fields that it lacks, because reports had fewer of them."""
    if not isinstance(report, GroupReport):
        return report
    known = {f.name: getattr(report, f.name) for f in fields(report) if hasattr(report, f.name)}
    return GroupReport(**known)
