"""The sending end of weight sync: one bucket plan that every rank walks.

With ZeRO-3 a parameter exists whole only inside a gather that all ranks enter, so buckets are sized
from the full shapes, gathered in the same order everywhere, and copied out inside the gather. Only
rank 0 sends.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch

TensorSpec = tuple[str, str, tuple[int, ...]]
"""Checkpoint name, torch dtype name, shape."""


class WeightSender:
    """Sends the parameters of a (possibly ZeRO-3 partitioned) module bucket by bucket."""

    def __init__(
        self,
        module: torch.nn.Module,
        *,
        dtype: str,
        rank: int,
        partitioned: bool,
        bucket_bytes: int,
    ) -> None:
        """`module` has checkpoint names; `dtype` is what the engines hold."""
        self._dtype: torch.dtype = getattr(torch, dtype)
        self._dtype_name = dtype
        self._rank = rank
        self._partitioned = partitioned
        self._buckets = _plan(module, self._dtype, bucket_bytes)
        self._exported: list[torch.Tensor | None] = [None] * len(self._buckets)
        self._group: Any = None

    def plan(self) -> list[list[TensorSpec]]:
        """Name, dtype and shape of every tensor, bucket by bucket."""
        return [
            [(name, self._dtype_name, _full_shape(p)) for name, p in bucket]
            for bucket in self._buckets
        ]

    def export_file(self, index: int, folder: str) -> str | None:
        """Write bucket `index` as a safetensors file; rank 0 returns its path."""
        with self._gathered(index):
            if self._rank:
                return None
            tensors = {name: self._copy(p, "cpu") for name, p in self._buckets[index]}
        from safetensors.torch import save_file

        path = Path(folder) / f"bucket-{index}.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        save_file(tensors, partial)
        os.replace(partial, path)  # a new inode: an engine may still map the last sync's file
        return str(path)

    def export_ipc(self, index: int) -> bytes | None:
        """Flatten bucket `index` on the card; rank 0 returns a handle other processes can open."""
        from torch.multiprocessing.reductions import reduce_tensor

        with self._gathered(index):
            if self._rank:
                return None
            flat = self._flatten(index)
        torch.cuda.synchronize()
        self._exported[index] = flat  # alive until the same bucket of the next sync replaces it
        return pickle.dumps(reduce_tensor(flat))

    def join_nccl(self, host: str, port: int, world_size: int) -> None:
        """Rank 0 opens the group that every engine worker joins."""
        if self._rank:
            return
        from vllm.distributed.device_communicators.pynccl import PyNcclCommunicator
        from vllm.distributed.utils import StatelessProcessGroup

        group = StatelessProcessGroup.create(host=host, port=port, rank=0, world_size=world_size)
        self._group = PyNcclCommunicator(group, device=torch.cuda.current_device())

    def broadcast_nccl(self, index: int) -> None:
        """Broadcast bucket `index` from rank 0 to every engine worker."""
        with self._gathered(index):
            if self._rank:
                return
            flat = self._flatten(index)
        self._group.broadcast(flat, src=0, stream=torch.cuda.current_stream())
        torch.cuda.synchronize()

    def _gathered(self, index: int) -> AbstractContextManager[Any]:
        if not self._partitioned:
            return nullcontext()
        import deepspeed

        parameters = [p for _, p in self._buckets[index]]
        return deepspeed.zero.GatheredParameters(parameters)

    def _copy(self, parameter: torch.nn.Parameter, device: str) -> torch.Tensor:
        return parameter.detach().to(device=device, dtype=self._dtype, copy=True).contiguous()

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
    for name, parameter in _parameters(module):
        size = torch.Size(_full_shape(parameter)).numel() * dtype.itemsize
        if not buckets or size > room:
            buckets.append([])
            room = bucket_bytes
        buckets[-1].append((name, parameter))
        room -= size
    return buckets


def _parameters(module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """Every parameter once: a tied head is not sent beside its embedding."""
    yield from module.named_parameters(remove_duplicate=True)
