"""The sending end of weight sync: one bucket plan that every rank walks.

With ZeRO-3 a parameter exists whole only inside a gather that all ranks enter, so buckets are sized
from the full shapes, gathered in the same order everywhere, and copied out inside the gather. Only
rank 0 sends. Adapters are merged tensor by tensor (learner.weights): engines know nothing of them.
"""

from __future__ import annotations

import os
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from learner.weights import Weight, checkpoint_weights, gathered

TensorSpec = tuple[str, str, tuple[int, ...]]
"""Checkpoint name, torch dtype name, shape."""


Transport = Literal["shm", "ipc", "nccl"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncSpec:
    """How buckets travel; the same on every rank."""

    transport: Transport
    bucket_bytes: int
    folder: str = ""
    """shm: where bucket files go, on the learner's node."""
    port: int = 0
    """nccl: where rank 0 waits for the engines' workers."""
    world_size: int = 0
    """nccl: rank 0 and every engine worker."""


class WeightSender:
    """Sends the checkpoint of a (possibly ZeRO-3 partitioned) module bucket by bucket."""

    def __init__(
        self, module: torch.nn.Module, spec: SyncSpec, *, dtype: str, rank: int, partitioned: bool
    ) -> None:
        """`module` is a transformers model; `dtype` is what the engines hold."""
        self._spec = spec
        self._dtype: torch.dtype = getattr(torch, dtype)
        self._dtype_name = dtype
        self._rank = rank
        self._partitioned = partitioned
        self._buckets = _plan(module, self._dtype, spec.bucket_bytes)
        self._exported: list[torch.Tensor | None] = [None] * len(self._buckets)
        self._group: Any = None

    def plan(self) -> list[list[TensorSpec]]:
        """Name, dtype and shape of every tensor, bucket by bucket."""
        return [
            [(weight.name, self._dtype_name, weight.shape) for weight in bucket]
            for bucket in self._buckets
        ]

    def join(self, host: str) -> None:
        """nccl: rank 0 opens the group on this node; returns once every engine worker is in."""
        if self._spec.transport != "nccl" or self._rank:
            return
        from vllm.distributed.device_communicators.pynccl import PyNcclCommunicator
        from vllm.distributed.utils import StatelessProcessGroup

        group = StatelessProcessGroup.create(
            host=host, port=self._spec.port, rank=0, world_size=self._spec.world_size
        )
        self._group = PyNcclCommunicator(group, device=torch.cuda.current_device())

    def send(self, index: int) -> str | bytes | None:
        """Send bucket `index`; all ranks call it.

        Returns:
            What the receiver needs: a file name (shm, rank 0), a handle of a flat CUDA buffer (ipc,
            every rank for the engine on its card), nothing (nccl).
        """
        parameters = [p for weight in self._buckets[index] for p in weight.parameters]
        with gathered(parameters, partitioned=self._partitioned):
            if self._spec.transport == "ipc":
                return self._export_ipc(index)
            if self._rank:
                return None
            if self._spec.transport == "shm":
                return self._export_file(index)
            flat = self._flatten(index)
        self._group.broadcast(flat, src=0, stream=torch.cuda.current_stream())
        torch.cuda.synchronize()
        return None

    def _export_file(self, index: int) -> str:
        from safetensors.torch import save_file

        tensors = {weight.name: self._copy(weight) for weight in self._buckets[index]}
        path = Path(self._spec.folder) / f"bucket-{index}.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        save_file(tensors, partial)
        os.replace(partial, path)  # a new inode: an engine may still map the last sync's file
        return str(path)

    def _export_ipc(self, index: int) -> bytes:
        from torch.multiprocessing.reductions import reduce_tensor

        flat = self._flatten(index)
        torch.cuda.synchronize()
        self._exported[index] = flat  # alive until the same bucket of the next sync replaces it
        return pickle.dumps(reduce_tensor(flat))

    def _copy(self, weight: Weight) -> torch.Tensor:
        return weight.value().to("cpu", self._dtype, copy=True).contiguous()

    def _flatten(self, index: int) -> torch.Tensor:
        parts = [weight.value().to(self._dtype).reshape(-1) for weight in self._buckets[index]]
        return torch.cat(parts)


def _plan(module: torch.nn.Module, dtype: torch.dtype, bucket_bytes: int) -> list[list[Weight]]:
    """Fill buckets in checkpoint order; a tensor larger than a bucket gets one of its own."""
    buckets: list[list[Weight]] = []
    room = 0
    for weight in checkpoint_weights(module):
        size = torch.Size(weight.shape).numel() * dtype.itemsize
        if not buckets or size > room:
            buckets.append([])
            room = bucket_bytes
        buckets[-1].append(weight)
        room -= size
    return buckets
