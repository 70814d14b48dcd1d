"""Tree attention against dense causal attention on one GPU: TFLOP/s of forward and backward.

    python benchmarks/attention_speed.py

The tree is that of learner_speed.py, a thought of 8,000 tokens with 16 answers of 118, in a row of
10,240 tokens with 12 heads of 128. FLOPs count visible pairs only: 4 per pair and channel forward,
10 backward. `dense` is torch's flash kernel on a causal row of the same length. Each line is one
choice of FlexAttention's tile sizes; a choice that does not fit the card's shared memory is left
out. Each measurement is one JSON object, printed and appended to --out.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import flex_attention

from learner.attention import tree_mask
from learner.packing import flatten, pack_rows
from learner_speed import tree, visible_pairs

TOKENS, HEADS, CHANNELS = 10_240, 12, 128
KEY_HEADS = (12, 2)
"""A key head for every query head, and the 2 of Qwen2-1.5B."""
FORWARD = [(128, 64, 8, 3), (128, 128, 8, 3)]
"""Query tile, key tile, warps, stages; the first is torch's choice for an H100."""
BACKWARD = [(64, 64, 4, 3), (64, 128, 8, 2), (64, 128, 8, 3)]
"""Tiles of the backward kernels (small, large), warps, stages."""


def main() -> None:
    """Measure every choice."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("attention_speed.jsonl"))
    asked = parser.parse_args()
    torch.manual_seed(0)
    q, k, v = (_random(HEADS) for _ in range(3))

    def dense() -> torch.Tensor:
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION]):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    causal = TOKENS * (TOKENS + 1) // 2
    _record(asked.out, "dense", {}, causal, *_time(dense, (q, k, v)))
    sample = tree(8000, 118)
    packed = pack_rows([[flatten(sample)]], TOKENS, multiple_of=128)
    mask = tree_mask(torch.from_numpy(packed.exits).cuda())
    for heads, forward, backward in itertools.product(KEY_HEADS, FORWARD, BACKWARD):
        options = _options(forward, backward)
        k, v = _random(heads), _random(heads)
        torch._dynamo.reset()
        kernel = torch.compile(flex_attention)

        attend = partial(
            kernel,
            *(q, k, v),
            block_mask=mask,
            kernel_options=options,
            enable_gqa=heads != HEADS,
        )
        try:
            seconds = _time(attend, (q, k, v))
        except Exception as error:  # tiles that do not fit are an answer, too
            print(options, type(error).__name__, str(error)[:200], flush=True)
            continue
        row = {"key_heads": heads, **options}
        _record(asked.out, "tree", row, visible_pairs(sample), *seconds)


def _random(heads: int) -> torch.Tensor:
    shape = (1, heads, TOKENS, CHANNELS)
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)


def _options(
    forward: tuple[int, int, int, int], backward: tuple[int, int, int, int]
) -> dict[str, int | bool]:
    m, n, warps, stages = forward
    small, large, bwd_warps, bwd_stages = backward
    return {
        "fwd_BLOCK_M": m,
        "fwd_BLOCK_N": n,
        "fwd_num_warps": warps,
        "fwd_num_stages": stages,
        "bwd_BLOCK_M1": small,
        "bwd_BLOCK_N1": large,
        "bwd_BLOCK_M2": large,
        "bwd_BLOCK_N2": small,
        "bwd_num_warps": bwd_warps,
        "bwd_num_stages": bwd_stages,
    }


def _time(
    attend: Callable[[], torch.Tensor], inputs: tuple[torch.Tensor, ...]
) -> tuple[float, float]:
    """Return the median seconds of a forward and of a backward pass."""
    times: list[list[float]] = [[], []]
    for _ in range(8):
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
        marks[0].record()
        out = attend()
        marks[1].record()
        torch.autograd.grad(out, inputs, torch.ones_like(out))
        marks[2].record()
        torch.cuda.synchronize()
        for part, (start, end) in enumerate(itertools.pairwise(marks)):
            times[part].append(start.elapsed_time(end) / 1e3)
    return statistics.median(times[0][3:]), statistics.median(times[1][3:])


def _record(
    out: Path, what: str, options: dict[str, int | bool], pairs: int, fwd: float, bwd: float
) -> None:
    work = pairs * HEADS * CHANNELS
    row = {
        "what": what,
        "forward_tflops": round(4 * work / fwd / 1e12),
        "backward_tflops": round(10 * work / bwd / 1e12),
        "both_tflops": round(14 * work / (fwd + bwd) / 1e12),
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        **options,
    }
    print(json.dumps(row), flush=True)
    with out.open("a") as file:
        file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
