"""What travels from the learner to the engines in a weight sync (rlsys.training.weight_sync).

The weights are cut into buckets, and both ends walk the same list of buckets in the same order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Transport = Literal["shm", "ipc", "nccl"]
"""Files in shared memory, buffers of a card that both ends use, or a broadcast between cards."""

TensorSpec = tuple[str, str, tuple[int, ...]]
"""Checkpoint name, torch dtype name, shape. A plain tuple: vLLM carries only such to its workers.

Example: ("model.norm.weight", "bfloat16", (2048,))
"""

Bucket = list[TensorSpec]
"""Tensors that are sent together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketFile:
    """A safetensors file of rank 0 that every engine reads."""

    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CardBuffer:
    """A flat CUDA buffer of one rank, for the engine on the same card."""

    handle: bytes
    """Pickled arguments that open the buffer in another process."""


SentPart = BucketFile | CardBuffer | None
"""What one rank's part in sending a bucket leaves to fetch; None if nothing, as in a broadcast."""
