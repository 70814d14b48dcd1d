"""The receiving end of weight sync: methods mixed into every vLLM worker.

Weights come with the names of the checkpoint, and the model's own loader brings them to their
place: it joins and shards them as it did when the engine started. Where vLLM keeps weights in the
form in which they were loaded, the loader writes over the old ones (`overwritable`). Captured CUDA
graphs, which hold the addresses of the tensors, then stay right.

Everywhere else vLLM has changed the weights after loading: on a CPU it packs linear layers, and
with quantisation it converts them. There an update goes through vLLM's layerwise reload, which
repeats those changes and takes some 0.07 s longer for 1.5 billion weights.
"""

from __future__ import annotations

import ctypes
import math
import pickle
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING

from actors.sampled_logprobs import Span
from rlsys.weights import Bucket

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.distributed.device_communicators.pynccl import PyNcclCommunicator
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    from actors.logprob_keeper import LogprobKeeper

PR_SET_PDEATHSIG = 1
"""prctl(2): the signal a process gets when its parent dies."""


class WeightReceiver:
    """vLLM's `worker_extension_cls`.

    vLLM makes it a base class of its worker, so `self` is the worker, and the prefix rlsys_ keeps
    every name apart from the worker's own.
    """

    device: torch.device
    rank: int
    vllm_config: VllmConfig
    model_runner: GPUModelRunner
    _rlsys_group: PyNcclCommunicator
    _rlsys_keeper: LogprobKeeper

    @cached_property
    def _rlsys_overwrites(self) -> bool:
        """Updates write over the weights and need no reload."""
        # Kept, because the engine serves nothing while this is asked.
        return self.device.type == "cuda" and overwritable(self.model_runner.get_model())

    def rlsys_die_with_parent(self) -> None:
        """Let the kernel kill this process when the one that started it dies, however it dies.

        An engine that outlives a killed actor would hold its memory, on a GPU all of it, for ever.
        """
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    def rlsys_answer(self) -> None:
        """Do nothing; the answer shows that the worker does not hang."""

    def rlsys_compile_s(self) -> float:
        """Return the seconds in which torch.compile compiled the model, 0 in eager mode."""
        return float(self.vllm_config.compilation_config.compilation_time)

    def rlsys_keep_logprobs(self) -> bool:
        """Keep sampled tokens' log-probs on the card from now on; False if that cannot be done."""
        if not getattr(self, "use_v2_model_runner", False):
            return False
        from actors.logprob_keeper import LogprobKeeper

        self._rlsys_keeper = LogprobKeeper(self.model_runner)
        return True

    def rlsys_take_logprobs(self, spans: Sequence[tuple[str, int, int]]) -> bytes:
        """Return the log-probs that were kept for ended requests; see LogprobKeeper.take."""
        return self._rlsys_keeper.take([Span(*span) for span in spans])

    def rlsys_begin(self) -> bool:
        """Get ready for new weights; until rlsys_finish the model cannot run.

        Returns True if they are written over the old ones.
        """
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        if not self._rlsys_overwrites:
            with self._rlsys_context():
                initialize_layerwise_reload(self.model_runner.get_model())
        return self._rlsys_overwrites

    def rlsys_receive_file(self, path: str) -> None:
        """Load one bucket from a safetensors file in shared memory."""
        from safetensors.torch import load_file

        self._rlsys_load(iter(load_file(path).items()))

    def rlsys_receive_ipc(self, handles: Sequence[bytes], buckets: Sequence[Bucket]) -> None:
        """Load buckets from flat CUDA buffers that another process on this card exported."""
        import torch

        # All before the first is used: they are parts of one allocation, which torch maps once for
        # as long as one of them lives, and again for every one that comes after the last is gone.
        flats = [rebuild(*arguments) for rebuild, arguments in map(pickle.loads, handles)]
        parts = zip(flats, buckets, strict=True)
        self._rlsys_load(chain.from_iterable(_split(flat, bucket) for flat, bucket in parts))
        # So far the copies only wait in a queue of the card. The sender may drop its buffers once
        # this call has returned, so they must have happened by then.
        torch.cuda.synchronize()

    def rlsys_join_nccl(self, host: str, port: int, first_rank: int, world_size: int) -> None:
        """Join the NCCL group whose rank 0 is the learner's first rank."""
        from vllm.distributed.device_communicators.pynccl import PyNcclCommunicator
        from vllm.distributed.utils import StatelessProcessGroup

        # Not a group of torch.distributed: that allows one default group per process, and vLLM's
        # own parallelism has it.
        group = StatelessProcessGroup.create(
            host=host, port=port, rank=first_rank + self.rank, world_size=world_size
        )
        self._rlsys_group = PyNcclCommunicator(group, device=self.device)

    def rlsys_receive_nccl(self, buckets: Sequence[Bucket]) -> None:
        """Load buckets from the learner's broadcasts, which follow each other without a pause."""
        import torch

        for bucket in buckets:
            sizes = [math.prod(shape) for _, _, shape in bucket]
            # Every tensor of a sync has the run's dtype, so one flat buffer takes a whole bucket.
            dtype = getattr(torch, bucket[0][1])
            flat = torch.empty(sum(sizes), dtype=dtype, device=self.device)
            self._rlsys_group.broadcast(flat, src=0, stream=torch.cuda.current_stream())
            self._rlsys_load(_split(flat, bucket))
        torch.cuda.synchronize()  # so that a copy that fails ends this call, and not a later one

    def rlsys_finish(self) -> None:
        """Make the new weights live."""
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        if self._rlsys_overwrites:
            return
        model = self.model_runner.get_model()
        with self._rlsys_context():
            finalize_layerwise_reload(model, self.model_runner.model_config)
            _repack_tied_head(model)

    def _rlsys_load(self, tensors: Iterator[tuple[str, torch.Tensor]]) -> None:
        with self._rlsys_context():
            self.model_runner.get_model().load_weights(tensors)

    @contextmanager
    def _rlsys_context(self) -> Iterator[None]:
        """What vLLM sets while it loads a model and code of its layers expects."""
        import torch
        from vllm.config import set_current_vllm_config

        with (
            set_current_vllm_config(self.vllm_config),
            torch.device(self.device),
            torch.no_grad(),
        ):
            yield


def overwritable(model: torch.nn.Module) -> bool:
    """Return whether vLLM on a GPU leaves the model's weights as its loader wrote them.

    False is always safe. It is the answer for quantised layers and mixtures of experts, and for
    attention that derives tensors of its own from the weights.
    """
    from vllm.model_executor.layers.attention import Attention
    from vllm.model_executor.layers.linear import UnquantizedLinearMethod
    from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
    from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod
    from vllm.v1.attention.backend import AttentionImplBase

    plain = (UnquantizedLinearMethod, UnquantizedEmbeddingMethod)
    hook = "process_weights_after_loading"
    nothing = getattr(AttentionImplBase, hook)
    for layer in model.modules():
        method = getattr(layer, "quant_method", None)
        # Exact types: a subclass may convert what it inherits.
        if isinstance(method, QuantizeMethodBase) and type(method) not in plain:
            return False
        if hasattr(layer, hook) and not (
            type(layer) is Attention and getattr(type(layer.impl), hook) is nothing
        ):
            return False
    return True


def _split(flat: torch.Tensor, bucket: Bucket) -> Iterator[tuple[str, torch.Tensor]]:
    """Cut a flat buffer back into named tensors (views)."""
    start = 0
    for name, _, shape in bucket:
        end = start + math.prod(shape)
        yield name, flat[start:end].view(shape)
        start = end


def _repack_tied_head(model: torch.nn.Module) -> None:
    """Pack a tied output head again, which only a CPU needs.

    There the head keeps a packed copy of the embedding that the reload leaves as it was. Without
    this the logits would be wrong after every sync, without any error. On a GPU no layer has such a
    copy, and nothing happens.
    """
    for layer in model.modules():
        weight = getattr(layer, "weight", None)
        if not hasattr(layer, "cpu_linear") or weight is None:
            continue
        # A packed layer gives its own weight up and keeps an empty one; only the tied head still
        # has a matrix here.
        if weight.ndim == 2 and weight.numel():
            from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

            dispatch_cpu_unquantized_gemm(layer, remove_weight=False)
