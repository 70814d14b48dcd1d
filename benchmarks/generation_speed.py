"""Tokens per second of the engines that training uses, and of vLLM alone, on one GPU.

    python benchmarks/generation_speed.py MODEL offline
    python benchmarks/generation_speed.py MODEL pool --engines 1 --runner v2

`offline` is vLLM's own LLM.generate without log-probs: the reference. `pool` is rlsys' pool of
engine actors, with log-probs, seeded and unseeded. Both sample 512 prompts of 100 tokens, each to
its end. Each call prints one JSON object a measurement, and appends it to --out.

Run both in the same session on the same card, since cards and hosts differ by more than most
changes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from pathlib import Path

import numpy as np

from actors.pools import GenerationPool
from rlsys.types import Completion, GenerationRequest, Tokens

PROMPTS, PROMPT_TOKENS, LAST_TOKEN = 512, 100, 60
CACHE_GIB = 20


def main() -> None:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("what", choices=["offline", "pool"])
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--engines", type=int, default=1)
    parser.add_argument("--runner", choices=["default", "v1", "v2"], default="default")
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("generation_speed.jsonl"))
    asked = parser.parse_args()
    if asked.runner != "default":
        os.environ["VLLM_USE_V2_MODEL_RUNNER"] = str(int(asked.runner == "v2"))
    prompts = np.random.default_rng(0).integers(3, LAST_TOKEN, (PROMPTS, PROMPT_TOKENS))
    measure = measure_offline if asked.what == "offline" else measure_pool
    measure(asked, list(prompts.astype(np.int32)))
    # vLLM's processes keep a finished interpreter waiting for minutes.
    os._exit(0)


def measure_offline(asked: argparse.Namespace, prompts: list[Tokens]) -> None:
    """vLLM without rlsys."""
    from vllm import LLM, SamplingParams

    engine = LLM(
        asked.model,
        dtype="bfloat16",
        max_model_len=2048,
        max_num_seqs=PROMPTS,
        gpu_memory_utilization=0.85,
        seed=0,
        disable_log_stats=True,
        enforce_eager=asked.eager,
    )
    texts = [{"prompt_token_ids": prompt.tolist()} for prompt in prompts]

    def generate(tokens: int, logprobs: int | None) -> None:
        params = SamplingParams(
            max_tokens=tokens, ignore_eos=True, detokenize=False, logprobs=logprobs
        )
        engine.generate(texts, params, use_tqdm=False)

    generate(16, None)
    for name, logprobs in (("vLLM offline", None), ("vLLM offline, log-probs", 0)):
        started = time.monotonic()
        generate(asked.tokens, logprobs)
        _record(asked, name, PROMPTS * asked.tokens, time.monotonic() - started)


def measure_pool(asked: argparse.Namespace, prompts: list[Tokens]) -> None:
    """The engines of a training run."""
    import ray

    from actors.generation import GenerationActor
    from actors.vllm_settings import EngineSpec, engine_environment

    ray.init(address="local", num_cpus=16, num_gpus=1, include_dashboard=False, log_to_driver=False)
    actor = ray.remote(GenerationActor)
    variables = engine_environment(on_gpu=True, threads=1)
    engines = [
        actor.options(
            num_cpus=1, num_gpus=1 / asked.engines, runtime_env={"env_vars": variables}
        ).remote(
            EngineSpec(
                index=index,
                model=asked.model,
                dtype="bfloat16",
                max_length=2048,
                max_sequences=PROMPTS // asked.engines,
                tensor_parallel=1,
                on_gpu=True,
                gpu_memory_utilization=0.85 / asked.engines,
                # Engines on one card would each measure the memory that the others take.
                kv_cache_bytes=(CACHE_GIB << 30) // asked.engines if asked.engines > 1 else None,
                enforce_eager=asked.eager,
                seed=0,
            )
        )
        for index in range(asked.engines)
    ]
    asyncio.run(_measure_pool(asked, GenerationPool(engines), prompts))


async def _measure_pool(
    asked: argparse.Namespace,
    pool: GenerationPool,
    prompts: list[Tokens],
) -> None:
    await pool.start()

    async def generate(tokens: int, *, seeded: bool) -> int:
        requests = [
            GenerationRequest(
                token_ids=prompt,
                n=1,
                max_tokens=tokens,
                stop_token_ids=(),
                temperature=1.0,
                seed=index if seeded else None,
            )
            for index, prompt in enumerate(prompts)
        ]
        completions = await pool.generate(requests)
        return sum(len(c.token_ids) for (c,) in completions)

    await generate(16, seeded=True)
    await _check(pool, prompts)
    for seeded in (True, False):
        started = time.monotonic()
        count = await generate(asked.tokens, seeded=seeded)
        name = "rlsys pool, log-probs" + ", seeds" * seeded
        _record(asked, name, count, time.monotonic() - started)


async def _check(pool: GenerationPool, prompts: list[Tokens]) -> None:
    """Compare log-probs that stay on the card with those that vLLM returns, on equal samples."""

    async def sample(top: int) -> list[Completion]:
        requests = [
            GenerationRequest(
                token_ids=prompt,
                n=2,
                max_tokens=64,
                stop_token_ids=(),
                temperature=0.8,
                seed=7 * index,
                engine=0,
                top_logprobs=top,
            )
            for index, prompt in enumerate(prompts[:64])
        ]
        return [sample for samples in await pool.generate(requests) for sample in samples]

    kept, returned = await sample(0), await sample(1)
    gaps = [
        np.abs(a.logprobs - b.logprobs).max()
        for a, b in zip(kept, returned, strict=True)
        if np.array_equal(a.token_ids, b.token_ids)
    ]
    print(f"{len(gaps)} of {len(kept)} samples equal, largest gap {max(gaps):.2e} nats", flush=True)


def _record(asked: argparse.Namespace, what: str, tokens: int, seconds: float) -> None:
    import torch
    import vllm

    row = {
        "what": what,
        "engines": asked.engines if asked.what == "pool" else 1,
        "runner": asked.runner,
        "eager": asked.eager,
        "tokens": tokens,
        "seconds": round(seconds, 2),
        "tokens_per_s": round(tokens / seconds),
        "device": torch.cuda.get_device_name(),
        "vllm": vllm.__version__,
        "torch": torch.__version__,
    }
    print(json.dumps(row), flush=True)
    with asked.out.open("a") as file:
        file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
