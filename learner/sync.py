"""The sending end of weight sync: one plan of buckets that all ranks follow together.

With ZeRO-3 a parameter exists whole only inside a gather that all ranks enter, so buckets are sized
from the full shapes, gathered in the same order everywhere, and copied out inside the gather. Rank
0 sends for all of them, except by `ipc`, where every rank serves the engine on its own card.
Adapters are merged tensor by tensor (learner.weights), because engines do not know them.
"""

from __future__ import annotations

import math
import os
import pickle
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from learner.weights import Weight, checkpoint_tensors, checkpoint_weights, gathered
from rlsys.weights import Bucket, BucketFile, CardBuffer, SentPart, StoredBucket, Transport

if TYPE_CHECKING:
    from vllm.distributed.device_communicators.pynccl import PyNcclCommunicator


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
        self._module = module
        self._spec = spec
        self._dtype: torch.dtype = getattr(torch, dtype)
        self._dtype_name = dtype
        self._rank = rank
        self._partitioned = partitioned
        self._buckets = _plan(module, self._dtype, spec.bucket_bytes)
        self._group: PyNcclCommunicator

    def plan(self) -> list[Bucket]:
        """Name, dtype and shape of every tensor, bucket by bucket."""
        return [
            [
                (name, self._dtype_name, tuple(tensor.shape))
                for weight in bucket
                for name, tensor in self._tensors(weight, torch.empty(weight.shape, device="meta"))
            ]
            for bucket in self._buckets
        ]

    def join(self, host: str) -> None:
        """nccl: rank 0 opens the group on this node; returns once every engine worker is in."""
        if self._spec.transport != "nccl" or self._rank:
            return  # the other ranks only take part in the gathers
        from vllm.distributed.device_communicators.pynccl import PyNcclCommunicator
        from vllm.distributed.utils import StatelessProcessGroup

        group = StatelessProcessGroup.create(
            host=host, port=self._spec.port, rank=0, world_size=self._spec.world_size
        )
        self._group = PyNcclCommunicator(group, device=torch.cuda.current_device())

    def send(self) -> list[SentPart]:
        """Send every bucket; all ranks call it.

        Returns:
            What the receiver needs of each: a file (shm, rank 0), an object of Ray (object_store,
            rank 0), a flat CUDA buffer (ipc, every rank for the engine on its card), nothing
            (nccl).
        """
        sent = [self._send(index) for index in range(len(self._buckets))]
        if torch.cuda.is_available():
            # Everything is in the card's queue, broadcasts included. The engine's process reads
            # exported memory without waiting for that queue.
            torch.cuda.synchronize()
        return sent

    def _send(self, index: int) -> SentPart:
        parameters = [p for weight in self._buckets[index] for p in weight.parameters]
        with gathered(parameters, partitioned=self._partitioned):
            if self._spec.transport == "ipc":
                return self._export_ipc(index)
            if self._rank:
                return None
            if self._spec.transport == "shm":
                return self._export_file(index)
            if self._spec.transport == "object_store":
                return self._export_object(index)
            flat = self._flatten(index)
        # `flat` is a copy, so the broadcast runs outside the gather and the whole parameters, which
        # take memory on every card, can go before the engines have arrived.
        self._group.broadcast(flat, src=0, stream=torch.cuda.current_stream())
        return None

    def _export_file(self, index: int) -> BucketFile:
        from safetensors.torch import save_file

        path = Path(self._spec.folder) / f"bucket-{index}.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        save_file(self._copies(index), partial)
        # A new inode instead of new content: an engine may still map the last sync's file.
        os.replace(partial, path)
        return BucketFile(path=str(path))

    def _export_object(self, index: int) -> StoredBucket:
        import ray
        from safetensors.torch import save

        # An array and not bytes: Ray writes it into the store without a further copy, and every
        # process of a node reads it there.
        content = np.frombuffer(save(self._copies(index)), np.uint8)
        return StoredBucket(content=ray.put(content))

    def _export_ipc(self, index: int) -> CardBuffer:
        from torch.multiprocessing.reductions import reduce_tensor

        # Written over in every sync: the engine has copied the last one before the next begins.
        flat = self._flatten(index, self._exported[index])
        return CardBuffer(handle=pickle.dumps(reduce_tensor(flat)))

    @cached_property
    def _exported(self) -> tuple[torch.Tensor, ...]:
        """ipc: a flat buffer per bucket; the handles that are sent do not keep their memory."""
        sizes = [sum(math.prod(shape) for _, _, shape in bucket) for bucket in self.plan()]
        # One allocation: an engine maps each allocation by itself, and serves nothing meanwhile.
        whole = torch.empty(sum(sizes), dtype=self._dtype, device=torch.cuda.current_device())
        buffers: tuple[torch.Tensor, ...] = whole.split(sizes)
        return buffers

    def _copies(self, index: int) -> dict[str, torch.Tensor]:
        return {
            name: self._copy(tensor)
            for weight in self._buckets[index]
            for name, tensor in self._tensors(weight, weight.value())
        }

    def _tensors(self, weight: Weight, value: torch.Tensor) -> Iterable[tuple[str, torch.Tensor]]:
        """Return the names and tensors of the checkpoint for the value of a weight."""
        return checkpoint_tensors(self._module, weight.name, value).items()

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        # Always a copy: DeepSpeed keeps weights as views of one large buffer at stages 1 and 2, and
        # safetensors refuses tensors that share memory.
        return tensor.to("cpu", self._dtype, copy=True).contiguous()

    def _flatten(self, index: int, out: torch.Tensor | None = None) -> torch.Tensor:
        return torch.cat(
            [
                tensor.to(self._dtype).reshape(-1)
                for weight in self._buckets[index]
                for _, tensor in self._tensors(weight, weight.value())
            ],
            out=out,
        )


def import_nccl() -> None:
    """Import what WeightSender.join needs: vLLM, which takes more than a second."""
    import vllm.distributed.device_communicators.pynccl
    import vllm.distributed.utils  # noqa: F401


def _plan(module: torch.nn.Module, dtype: torch.dtype, bucket_bytes: int) -> list[list[Weight]]:
    """Fill buckets in checkpoint order; a tensor larger than a bucket gets one of its own."""
    buckets: list[list[Weight]] = []
    room = 0
    # The order of the checkpoint is the same on every rank, so all of them come to the same plan
    # without talking to each other, and the gathers of a bucket match.
    for weight in checkpoint_weights(module):
        size = torch.Size(weight.shape).numel() * dtype.itemsize
        if not buckets or size > room:
            buckets.append([])
            room = bucket_bytes
        buckets[-1].append(weight)
        room -= size
    return buckets
