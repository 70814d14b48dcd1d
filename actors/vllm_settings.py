"""Settings of an engine and of a request, as vLLM takes them, and environment variables."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rlsys.types import GenerationRequest, Tokens

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.engine.arg_utils import AsyncEngineArgs

CPU_BATCH_TOKENS = 4096
"""Tokens of one engine step on the CPU; a longer prompt raises it."""
LONG_SEQUENCE = 4096
"""From this many tokens on, an engine on a GPU has blocks of LONG_BLOCK tokens in its cache."""
LONG_BLOCK = 64
LONGEST_SOCKET_PATH = 107
"""Characters that Linux allows in the path of a Unix socket."""
SOCKET_NAME_LENGTH = 37
"""Characters of the name that vLLM gives a socket, with the slash before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """What one engine needs to start."""

    index: int
    """Place in the pool; travels with every completion."""
    model: str
    dtype: str
    max_length: int
    max_sequences: int
    tensor_parallel: int
    on_gpu: bool
    gpu_memory_utilization: float
    kv_cache_bytes: int | None
    enforce_eager: bool
    seed: int
    kv_cache_dtype: Literal["auto", "fp8"] = "auto"
    prefix_caching: bool = True
    max_batched_tokens: int | None = None
    """None takes vLLM's own number."""
    canary: tuple[Tokens, ...] = ()
    """Sequences that a weight sync checks beside `max_sequences` samples that are under way."""


def engine_args(spec: EngineSpec) -> AsyncEngineArgs:
    """Return vLLM's settings of an engine."""
    from vllm.engine.arg_utils import AsyncEngineArgs

    return AsyncEngineArgs(
        model=spec.model,
        dtype=spec.dtype,
        seed=spec.seed,
        max_model_len=spec.max_length,
        max_num_seqs=spec.max_sequences + len(spec.canary),
        tensor_parallel_size=spec.tensor_parallel,
        # Processes of this actor. Left to itself, vLLM would notice Ray and ask it for cards that
        # this actor has already.
        distributed_executor_backend="mp" if spec.tensor_parallel > 1 else None,
        gpu_memory_utilization=spec.gpu_memory_utilization,
        kv_cache_memory_bytes=spec.kv_cache_bytes,
        enforce_eager=spec.enforce_eager,
        block_size=_cache_block(spec),
        enable_prefix_caching=spec.prefix_caching,
        kv_cache_dtype=spec.kv_cache_dtype,
        # vLLM rewinds the random generator of a seeded request whose prompt is prefilled in parts.
        # Only a CUDA generator can be rewound, so on CPU such a request would fail.
        enable_chunked_prefill=None if spec.on_gpu else False,
        max_num_batched_tokens=spec.max_batched_tokens
        if spec.on_gpu
        else max(spec.max_batched_tokens or CPU_BATCH_TOKENS, spec.max_length),
        # After the division by the temperature: the learner divides its logits by it too, so the
        # two log-probs of a token are of the same distribution.
        logprobs_mode="processed_logprobs",
        worker_extension_cls="actors.weight_receiver.WeightReceiver",
        disable_log_stats=True,
        # Ignore the sampling defaults in the model folder; a request states all its settings.
        generation_config="vllm",
    )


def _cache_block(spec: EngineSpec) -> int | None:
    """Return the tokens of a block of the KV cache; None lets vLLM choose."""
    if not spec.on_gpu:
        # CPU attention takes multiples of 32, and only whole blocks are cached: with the default of
        # 128 the prefix of a short thought would never be found.
        return 32
    # The engine's core spends microseconds on every block of a new request, and decodes nothing
    # meanwhile: with CUDA's 16 tokens, about 2 ms for an answer to a thought of 8,000.
    return LONG_BLOCK if spec.max_length >= LONG_SEQUENCE else None


def sampling_params(request: GenerationRequest) -> SamplingParams:
    """Return vLLM's settings of a request."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        n=request.n,
        max_tokens=request.max_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k or 0,
        stop_token_ids=list(request.stop_token_ids),
        ignore_eos=True,  # the request names every token that ends it
        seed=request.seed,
        logprobs=request.top_logprobs,
        flat_logprobs=True,
        # Decoding costs time for every token, and only a stop text needs it.
        detokenize=request.stop_text is not None,
        stop=request.stop_text,
        include_stop_str_in_output=True,
        skip_special_tokens=False,  # a special token inside the text breaks it up
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def engine_environment(*, on_gpu: bool, threads: int) -> dict[str, str]:
    """Environment variables of a generation actor; each one removes a known trap."""
    common = {
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "ERROR"),
    }
    if on_gpu:
        return common | {
            # The first runner draws with seeds in a Python loop over requests, and log-probs can
            # stay on the card (actors.logprob_keeper) in the second one only. vLLM chooses the
            # first for some models; a variable of the user decides otherwise.
            "VLLM_USE_V2_MODEL_RUNNER": os.environ.get("VLLM_USE_V2_MODEL_RUNNER", "1"),
        }
    return common | {
        # OpenMP barriers spin: more threads than free cores slow a small model 20-fold.
        "OMP_NUM_THREADS": str(threads),
        # The sampler is torch.compiled even in eager mode, which needs g++ and up to a minute.
        "TORCHDYNAMO_DISABLE": "1",
        # One engine process instead of engine core plus worker.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_CI_ENV": "1",  # no warm-up pass at start
    }


def use_socket_folder_of_ray() -> None:
    """Let vLLM put its sockets beside those of Ray; call it in an actor, before vLLM starts.

    An engine that is killed leaves its sockets behind, and vLLM would put them into the folder of
    temporary files itself.
    """
    import ray

    node = ray._private.worker._global_node
    if node is None:
        return  # a process that Ray did not start
    folder = node.get_sockets_dir_path()
    if len(folder) + SOCKET_NAME_LENGTH <= LONGEST_SOCKET_PATH:
        os.environ["VLLM_RPC_BASE_PATH"] = folder
