"""The trained numbers of a sample's segments, for tests that know which segments are trained."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rlsys.types import Floats, Sample


def advantages_of(sample: Sample, segment: int) -> Floats:
    """The advantages of a segment that is trained."""
    found = sample.advantages[segment]
    assert found is not None, f"segment {segment} is not trained"
    return found


def rows_of(sample: Sample, segment: int) -> NDArray[np.int32]:
    """How many rows each token of a segment stands for, where that is stated."""
    assert sample.rows
    found = sample.rows[segment]
    assert found is not None, f"segment {segment} states no rows"
    return found
