"""The receiving end of weight sync: methods mixed into every vLLM worker.

vLLM packs linear weights on load (CPU) and keeps them in place for CUDA graphs (GPU), so weights
are never written directly: they go through vLLM's own layerwise reload, in checkpoint names.
"""

from __future__ import annotations

import ctypes
import pickle
import signal
import sys
from collections.abc import Iterator
from typing import Any

PR_SET_PDEATHSIG = 1
"""prctl(2): the signal a process gets when its parent dies."""

TensorSpec = tuple[str, str, tuple[int, ...]]
"""Checkpoint name, torch dtype name, shape."""


class WeightReceiver:
    """worker_extension_cls; `self` is the worker, hence the rlsys_ prefix on every name."""

    device: Any
    rank: int
    vllm_config: Any
    model_runner: Any
    _rlsys_group: Any

    def rlsys_die_with_parent(self) -> None:
        """Let the kernel kill this process when the one that started it dies, however it dies.

        An engine that outlives a killed actor would hold its memory, on a GPU all of it, for ever.
        """
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    def rlsys_begin(self) -> None:
        """Open a reload; until rlsys_finish the model cannot run."""
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        with self._rlsys_context():
            initialize_layerwise_reload(self.model_runner.get_model())

    def rlsys_receive_file(self, path: str) -> None:
        """Load one bucket from a safetensors file in shared memory."""
        from safetensors.torch import load_file

        self._rlsys_load(iter(load_file(path).items()))

    def rlsys_receive_ipc(self, handle: bytes, specs: list[TensorSpec]) -> None:
        """Load one bucket from a flat CUDA buffer that another process on this card exported."""
        import torch

        rebuild, arguments = pickle.loads(handle)
        flat = rebuild(*arguments)
        self._rlsys_load(_split(flat, specs))
        torch.cuda.synchronize()  # the sender reuses its buffer once this call has returned

    def rlsys_join_nccl(self, host: str, port: int, first_rank: int, world_size: int) -> None:
        """Join the NCCL group whose rank 0 is the learner's first rank."""
        from vllm.distributed.device_communicators.pynccl import PyNcclCommunicator
        from vllm.distributed.utils import StatelessProcessGroup

        group = StatelessProcessGroup.create(
            host=host, port=port, rank=first_rank + self.rank, world_size=world_size
        )
        self._rlsys_group = PyNcclCommunicator(group, device=self.device)

    def rlsys_receive_nccl(self, specs: list[TensorSpec]) -> None:
        """Load one bucket from the learner's broadcast."""
        import torch

        sizes = [_numel(shape) for _, _, shape in specs]
        dtype = getattr(torch, specs[0][1])
        flat = torch.empty(sum(sizes), dtype=dtype, device=self.device)
        self._rlsys_group.broadcast(flat, src=0, stream=torch.cuda.current_stream())
        self._rlsys_load(_split(flat, specs))
        torch.cuda.synchronize()

    def rlsys_finish(self) -> None:
        """Close the reload; the new weights are live."""
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        model = self.model_runner.get_model()
        with self._rlsys_context():
            finalize_layerwise_reload(model, self.model_runner.model_config)
            _repack_tied_head(model)

    def _rlsys_load(self, tensors: Iterator[tuple[str, Any]]) -> None:
        with self._rlsys_context():
            self.model_runner.get_model().load_weights(tensors)

    def _rlsys_context(self) -> Any:
        from contextlib import ExitStack

        import torch
        from vllm.config import set_current_vllm_config

        stack = ExitStack()
        stack.enter_context(set_current_vllm_config(self.vllm_config))
        stack.enter_context(torch.device(self.device))
        stack.enter_context(torch.no_grad())
        return stack


def _numel(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _split(flat: Any, specs: list[TensorSpec]) -> Iterator[tuple[str, Any]]:
    """Cut a flat buffer back into named tensors (views)."""
    start = 0
    for name, _, shape in specs:
        end = start + _numel(shape)
        yield name, flat[start:end].view(shape)
        start = end


def _repack_tied_head(model: Any) -> None:
    """CPU only: a tied head keeps a packed copy of its own that the reload leaves stale.

    Without this the logits are silently wrong after every sync. A no-op on GPUs.
    """
    for layer in model.modules():
        weight = getattr(layer, "weight", None)
        if not hasattr(layer, "cpu_linear") or weight is None:
            continue
        if weight.ndim == 2 and weight.numel():
            from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

            dispatch_cpu_unquantized_gemm(layer, remove_weight=False)
