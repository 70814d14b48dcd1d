"""Seconds of long thoughts and of the answers at their cuts, for a size of the cache's blocks.

    python benchmarks/speed_model.py MODEL TOKENIZER
    python benchmarks/cache_blocks.py MODEL --block 16        # needs a GPU
    python benchmarks/cache_blocks.py rlsys/assets/tiny --block 32 --cuts 64 128 --device cpu

vLLM alone, without log-probs. All thoughts go on to the next cut; then every thought gets its
answers there, which find the thought in the prefix cache. The last command proves the script.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from actors.vllm_settings import engine_environment

if TYPE_CHECKING:
    from vllm import LLM

PROMPT: Final = 32
"""Tokens of a prompt."""
TOKENS: Final = 100
"""Prompts are drawn from so many tokens of the vocabulary."""


def main() -> None:
    """Measure one size of blocks and append a line to the file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--block", type=int, required=True, help="tokens of a block")
    parser.add_argument("--cuts", nargs="+", type=int, default=[2000, 4000, 6000, 7900])
    parser.add_argument("--thoughts", type=int, default=32)
    parser.add_argument("--answers", type=int, default=4, help="to every thought at every cut")
    parser.add_argument("--answer-tokens", type=int, default=118)
    parser.add_argument("--cache-mib", type=int, default=16_384)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--out", type=Path, default=Path("cache_blocks.jsonl"))
    asked = parser.parse_args()
    on_gpu = asked.device == "cuda"
    os.environ.update(engine_environment(on_gpu=on_gpu, threads=1))
    from vllm import LLM

    engine = LLM(
        model=str(asked.model),
        dtype="bfloat16" if on_gpu else "float32",
        max_model_len=PROMPT + asked.cuts[-1] + asked.answer_tokens,
        max_num_seqs=512,
        kv_cache_memory_bytes=asked.cache_mib << 20,
        gpu_memory_utilization=0.5,
        block_size=asked.block,
        enforce_eager=not on_gpu,
        # Seeded prompts cannot be prefilled in parts on the CPU.
        enable_chunked_prefill=None if on_gpu else False,
        max_num_batched_tokens=None if on_gpu else 4096,
    )
    row = {"block": asked.block, **_measured(engine, asked)}
    print(json.dumps(row))
    with asked.out.open("a", encoding="utf-8") as file:
        file.write(f"{json.dumps(row)}\n")
    engine.llm_engine.engine_core.shutdown()  # its process would keep the card's memory
    # vLLM's processes keep a finished interpreter waiting for minutes.
    os._exit(0)


def _measured(engine: LLM, asked: argparse.Namespace) -> dict[str, float]:
    """Return the seconds of the thoughts up to every cut, and of the answers there."""
    drawn = np.random.default_rng(0).integers(1, TOKENS, (asked.thoughts, PROMPT))
    thoughts: list[list[int]] = drawn.tolist()
    _sample(engine, thoughts, 1, 8)  # warms up
    seconds = {}
    for cut in asked.cuts:
        took, thoughts = _sample(engine, thoughts, 1, PROMPT + cut - len(thoughts[0]))
        seconds[f"thoughts_{cut}"] = round(took, 3)
        took, _ = _sample(engine, thoughts, asked.answers, asked.answer_tokens)
        seconds[f"answers_{cut}"] = round(took, 3)
    return seconds


def _sample(
    engine: LLM, prompts: Sequence[list[int]], n: int, tokens: int
) -> tuple[float, list[list[int]]]:
    """Return the seconds of n samples to every prompt, and the prompts with their first sample."""
    from vllm import SamplingParams

    params = [
        SamplingParams(n=n, max_tokens=tokens, ignore_eos=True, seed=seed, detokenize=False)
        for seed in range(len(prompts))
    ]
    inputs: list[Any] = [{"prompt_token_ids": prompt} for prompt in prompts]
    began = time.monotonic()
    results = engine.generate(inputs, params, use_tqdm=False)
    took = time.monotonic() - began
    first = (list(result.outputs[0].token_ids) for result in results)
    return took, [prompt + sample for prompt, sample in zip(prompts, first, strict=True)]


if __name__ == "__main__":
    main()
