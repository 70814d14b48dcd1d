"""Makes supervised rows in a process of its own, ahead of the learner.

Written searches take one Python thread several times as long as a small model on a GPU needs to
train on them. The rows of a step depend on the seed and the step alone, so any process can make
them.
"""

from __future__ import annotations

from rlsys.sft.rows import SupervisedRows
from rlsys.types import Sample


class RowMaker:
    """A plain class; rlsys.launch makes Ray actors of it."""

    def __init__(self, rows: SupervisedRows, count: int) -> None:
        """Make `count` rows per step."""
        self._rows = rows
        self._count = count

    def make(self, step: int) -> tuple[tuple[Sample, ...], list[tuple[int, int]]]:
        """Return the rows of `step`, and the tokens and trained tokens of each."""
        samples = tuple(self._rows.samples(step, self._count))
        return samples, [(s.num_tokens, s.num_trained) for s in samples]
