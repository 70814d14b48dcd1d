"""The generation actor: one vLLM engine, token ids in, token ids and log-probs and versions out.

An update goes begin_update -> receive -> finish_update -> verify. The gate is closed from the first
to the last: no new request enters, and no result leaves before the canary has passed, so an engine
with wrong weights never serves. Requests in flight are kept and go on after the update.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlsys.errors import EngineError, SyncError
from rlsys.types import Candidates, Completion, Floats, GenerationRequest, Tokens

INITIAL_VERSION = 0

CPU_BATCH_TOKENS = 4096
"""Tokens of one engine step on the CPU; a longer prompt raises it."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """Fixed sequences and what the learner says of them; see rlsys.training.weight_sync."""

    sequences: tuple[Tokens, ...]
    logprobs: tuple[Floats, ...]
    """Per sequence [len - 1]: log-prob of token i + 1 given the tokens before it, temperature 1."""
    tolerance: float
    """Largest mean absolute gap in nats."""


@dataclass(slots=True, kw_only=True)
class EngineCounts:
    """Tokens since the start; rates and shares are differences of two of these."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens found in the prefix cache."""
    sampled_tokens: int = 0


class GenerationActor:
    """A plain class; rlsys.launch makes a Ray actor of it."""

    def __init__(self, spec: EngineSpec) -> None:
        self._spec = spec
        self._version = INITIAL_VERSION
        self._serving = asyncio.Event()
        self._ids = itertools.count()
        self._counts = EngineCounts()
        self._cache_block = 1
        self._engine: Any = None

    async def start(self) -> str:
        """Load the engine and return vLLM's version. Serves the folder's weights as version 0."""
        from vllm import __version__
        from vllm.v1.engine.async_llm import AsyncLLM

        self._engine = AsyncLLM.from_engine_args(_engine_args(self._spec))
        self._cache_block = int(self._engine.vllm_config.cache_config.block_size)
        await self.call_workers("rlsys_die_with_parent")
        self._serving.set()
        return str(__version__)

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[list[Completion]]:
        """Return the n completions of every request, in request order."""
        return list(await asyncio.gather(*(self._generate_one(r) for r in requests)))

    async def _generate_one(self, request: GenerationRequest) -> list[Completion]:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        await self._serving.wait()
        first = self._version
        params = SamplingParams(
            n=request.n,
            max_tokens=request.max_tokens,
            temperature=request.temperature,
            stop_token_ids=list(request.stop_token_ids),
            ignore_eos=True,  # the request names every token that ends it
            seed=request.seed,
            logprobs=request.top_logprobs,
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        output = await self._finish(request.token_ids, params, first)
        await self._serving.wait()
        self._counts.prompt_tokens += len(request.token_ids)
        self._counts.cached_tokens += output.num_cached_tokens or 0
        self._counts.sampled_tokens += sum(len(s.token_ids) for s in output.outputs)
        versions, cached = (first, self._version), output.num_cached_tokens or 0
        return [
            self._completion(sample, request.top_logprobs, versions, cached)
            for sample in output.outputs
        ]

    def _completion(
        self, sample: Any, top: int, versions: tuple[int, int], cached_tokens: int
    ) -> Completion:
        # At every position vLLM tells of the sampled token first, then of the `top` likeliest.
        logprobs = np.asarray(sample.logprobs.logprobs, np.float32).reshape(-1, 1 + top)
        candidates = None
        if top:
            ids = np.asarray(sample.logprobs.token_ids, np.int32).reshape(-1, 1 + top)
            candidates = Candidates(ids[:, 1:], logprobs[:, 1:])
        return Completion(
            token_ids=np.asarray(sample.token_ids, np.int32),
            logprobs=np.ascontiguousarray(logprobs[:, 0]),
            stopped=sample.finish_reason == "stop",
            versions=versions,
            engine=self._spec.index,
            candidates=candidates,
            cached_tokens=cached_tokens,
            cache_block=self._cache_block,
        )

    async def _finish(self, token_ids: Tokens, params: Any, version: int) -> Any:
        """Run one request to its end. The salt keeps a prefix cached under other weights unseen."""
        prompt = {"prompt_token_ids": token_ids.tolist(), "cache_salt": f"version-{version}"}
        request_id = str(next(self._ids))
        with self._alive():
            async for output in self._engine.generate(prompt, params, request_id=request_id):
                if output.finished:
                    return output
        raise EngineError(f"engine {self._spec.index} ended request {request_id} unfinished")

    async def call_workers(self, method: str, *args: Any) -> list[Any]:
        """Call a WeightReceiver method in every worker of the engine."""
        with self._alive():
            return list(await self._engine.collective_rpc(method, args=args))

    async def begin_update(self) -> None:
        """Close the gate, freeze requests in flight, drop every cached prefix."""
        self._serving.clear()
        with self._alive():
            await self._engine.pause_generation(mode="keep", clear_cache=True)
        await self.call_workers("rlsys_begin")

    async def finish_update(self, version: int) -> None:
        """Make the received weights live as `version` and let frozen requests go on."""
        await self.call_workers("rlsys_finish")
        with self._alive():
            await self._engine.resume_generation()
        self._version = version

    async def verify(self, canary: Canary) -> float:
        """Compare with the learner and open the gate; return the mean absolute gap in nats.

        Raises SyncError, with the gate still closed, if the gap exceeds the tolerance.
        """
        ours = await asyncio.gather(*(self._score(s) for s in canary.sequences))
        gaps = [np.abs(a - b) for a, b in zip(ours, canary.logprobs, strict=True)]
        gap = float(np.concatenate(gaps).mean())
        if not gap <= canary.tolerance:
            raise SyncError(
                f"engine {self._spec.index} differs from the learner by {gap:.2e} nats on the "
                f"canary prompts at version {self._version}, more than sync.canary_tolerance "
                f"{canary.tolerance:.0e}; its weights arrived wrong and it does not serve"
            )
        self._serving.set()
        return gap

    async def _score(self, sequence: Tokens) -> Floats:
        """Log-prob of every token of `sequence` after the first, at temperature 1."""
        from vllm import SamplingParams

        params = SamplingParams(max_tokens=1, prompt_logprobs=0, detokenize=False)
        output = await self._finish(sequence, params, self._version)
        rows = output.prompt_logprobs[1:]
        ids = sequence[1:].tolist()
        return np.asarray([row[i].logprob for i, row in zip(ids, rows, strict=True)], np.float32)

    async def counts(self) -> EngineCounts:
        """Tokens handled so far."""
        return self._counts

    async def close(self) -> None:
        """Shut the engine's processes down; they outlive the actor otherwise."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.shutdown()

    @contextmanager
    def _alive(self) -> Iterator[None]:
        """Turn the death of the engine's own process into an error that names the engine."""
        from vllm.v1.engine.exceptions import EngineDeadError

        try:
            yield
        except EngineDeadError as error:
            raise EngineError(
                f"engine {self._spec.index} died; set RLSYS_ACTOR_LOGS=1 to see why, and give the "
                "same command again to go on from the last checkpoint"
            ) from error


def _engine_args(spec: EngineSpec) -> Any:
    from vllm.engine.arg_utils import AsyncEngineArgs

    return AsyncEngineArgs(
        model=spec.model,
        dtype=spec.dtype,
        seed=spec.seed,
        max_model_len=spec.max_length,
        max_num_seqs=spec.max_sequences,
        tensor_parallel_size=spec.tensor_parallel,
        gpu_memory_utilization=spec.gpu_memory_utilization,
        kv_cache_memory_bytes=spec.kv_cache_bytes,
        enforce_eager=spec.enforce_eager,
        # CPU attention takes multiples of 32 and caches whole blocks; its default of 128 would
        # never hit for short thoughts. CUDA kernels choose their own.
        block_size=None if spec.on_gpu else 32,
        enable_prefix_caching=True,
        # On CPU a prompt prefilled in parts breaks requests that have a seed (vLLM rewinds their
        # generator, which only CUDA's can).
        enable_chunked_prefill=None if spec.on_gpu else False,
        max_num_batched_tokens=None if spec.on_gpu else max(CPU_BATCH_TOKENS, spec.max_length),
        # Divided by the temperature, so that the learner's log-probs are comparable.
        logprobs_mode="processed_logprobs",
        worker_extension_cls="actors.weight_receiver.WeightReceiver",
        disable_log_stats=True,
        generation_config="vllm",
    )


def engine_environment(*, on_gpu: bool, threads: int) -> dict[str, str]:
    """Environment variables of a generation actor; each one removes a known trap."""
    common = {
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "ERROR"),
    }
    if on_gpu:
        return common
    return common | {
        # OpenMP barriers spin: more threads than free cores slow a small model 20-fold.
        "OMP_NUM_THREADS": str(threads),
        # The sampler is torch.compiled even in eager mode, which needs g++ and up to a minute.
        "TORCHDYNAMO_DISABLE": "1",
        # One engine process instead of engine core plus worker.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_CI_ENV": "1",  # no warm-up pass at start
    }
