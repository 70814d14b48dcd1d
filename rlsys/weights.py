"""What travels from the learner to the engines in a weight sync (rlsys.training.weight_sync).

The weights are cut into buckets, and both ends walk the same list of buckets in the same order.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Transport = Literal["shm", "object_store", "ipc", "nccl"]
"""Files in shared memory of one node, objects that Ray carries between nodes, buffers of a card
that both ends use, or a broadcast between cards."""

TensorSpec = tuple[str, str, tuple[int, ...]]
"""Checkpoint name, torch dtype name, shape. A plain tuple: vLLM carries only such to its workers.

Example: ("model.norm.weight", "bfloat16", (2048,))
"""

Bytes = npt.NDArray[np.uint8]

Bucket = list[TensorSpec]
"""Tensors that are sent together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketFile:
    """A safetensors file of rank 0 that every engine reads."""

    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBucket:
    """The bytes of a safetensors file in Ray's object store."""

    content: Awaitable[Bytes]
    """Reference to the bytes, which an engine's node fetches from the learner's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardBuffer:
    """A flat CUDA buffer of one rank, for the engine on the same card."""

    handle: bytes
    """Pickled arguments that open the buffer in another process."""


SentPart = BucketFile | StoredBucket | CardBuffer | None
"""What one rank's part in sending a bucket leaves to fetch; None if nothing, as in a broadcast."""
