"""The sending end of weight sync: one bucket plan that every rank walks.

With ZeRO-3 a parameter exists whole only inside a gather that all ranks enter, so buckets are sized
from the full shapes, gathered in the same order everywhere, and copied out inside the gather. Only
rank 0 sends.
"""

from __future__ import annotations

import os
import pickle
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from learner.checkpoint import gathered

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
    """Sends the parameters of a (possibly ZeRO-3 partitioned) module bucket by bucket."""

    def __init__(
        self, module: torch.nn.Module, spec: SyncSpec, *, dtype: str, rank: int, partitioned: bool
    ) -> None:
        """`module` has checkpoint names; `dtype` is what the engines hold."""
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
            [(name, self._dtype_name, _full_shape(p)) for name, p in bucket]
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
        with self._gathered(index):
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

        tensors = {name: self._copy(p) for name, p in self._buckets[index]}
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

    def _gathered(self, index: int) -> AbstractContextManager[Any]:
        parameters = [p for _, p in self._buckets[index]]
        return gathered(parameters, partitioned=self._partitioned)

    def _copy(self, parameter: torch.nn.Parameter) -> torch.Tensor:
        return parameter.detach().to("cpu", self._dtype, copy=True).contiguous()

    def _flatten(self, index: int) -> torch.Tensor:
        parts = [p.detach().to(self._dtype).reshape(-1) for _, p in self._buckets[index]]
        return torch.cat(parts)


def _full_shape(parameter: torch.nn.Parameter) -> tuple[int, ...]:
    """Shape of the whole parameter; ZeRO-3 keeps it in ds_shape and leaves numel() at 0."""
    return tuple(getattr(parameter, "ds_shape", parameter.shape))


def _plan(
    module: torch.nn.Module, dtype: torch.dtype, bucket_bytes: int
) -> list[list[tuple[str, torch.nn.Parameter]]]:
    """Fill buckets in parameter order; a parameter larger than a bucket gets one of its own."""
    buckets: list[list[tuple[str, torch.nn.Parameter]]] = []
    room = 0
    for name, parameter in module.named_parameters():  # a tied head is its embedding, sent once
        size = torch.Size(_full_shape(parameter)).numel() * dtype.itemsize
        if not buckets or size > room:
            buckets.append([])
            room = bucket_bytes
        buckets[-1].append((name, parameter))
        room -= size
    return buckets
