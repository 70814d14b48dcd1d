"""Speed and memory of one learner rank on packed trees: tokens per second, MFU, padding.

    python benchmarks/learner_speed.py MODEL --job long --checkpointing
    python benchmarks/learner_speed.py MODEL --job long --checkpointing 12
    python benchmarks/learner_speed.py MODEL --job short
    python benchmarks/learner_speed.py MODEL --job short --profile kernels.txt

`long` trains 8 trees of a thought of 8,000 tokens with 4 cuts x 4 answers of 118 tokens; `uneven`
8 trees with thoughts of 4,500 to 8,000; `short` 64 trees of 1,000 tokens; `wide` is `long` on
row_tokens that the trees do not fill, so that padding shows. MFU counts 6 FLOPs per parameter and
token, the head for trained tokens only, and attention for pairs that the tree mask leaves visible;
recomputation under checkpointing is not counted. `--checkpointing` alone checkpoints all layers,
with a number the first ones. `--profile` writes the time of every kernel in one further step.
Each job prints one JSON object and appends it to --out.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch

from learner.flops import step_cost
from learner.plan import RankPlan, make_plan
from learner.spec import LearnerSpec
from learner.worker import LearnerWorker
from rlsys.config import LearnerConfig, LossConfig, OptimizerConfig
from rlsys.types import NO_PARENT, Kind, Sample, Segment

PEAK_FLOPS = 989e12
"""Dense bfloat16 of an H100 SXM or an H200."""
PROMPT_TOKENS, FORCED_TOKENS, CUTS, ANSWERS = 100, 8, 4, 4


def main() -> None:
    """Run one job."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--job", choices=["long", "wide", "short", "uneven"], default="long")
    parser.add_argument(
        "--checkpointing", nargs="?", type=int, const=True, default=False, metavar="LAYERS"
    )
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--logits-chunk", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--profile", type=Path, help="a file for the time of every kernel")
    parser.add_argument("--out", type=Path, default=Path("learner_speed.jsonl"))
    asked = parser.parse_args()
    trees, row_tokens, rows = {
        "long": ([tree(8000, 118) for _ in range(8)], 1024, 1),
        "wide": ([tree(8000, 118) for _ in range(8)], 16_384, 1),
        "short": ([tree(1000, 32) for _ in range(64)], 8192, 2),
        "uneven": ([tree(8000 - 500 * n, 118) for n in range(8)], 1024, 1),
    }[asked.job]
    config = LearnerConfig(
        gpus_per_rank=1,
        row_tokens=row_tokens,
        micro_batch_rows=rows,
        gradient_checkpointing=asked.checkpointing,
        compile=not asked.no_compile,
        logits_chunk=asked.logits_chunk,
        optimizer=OptimizerConfig(learning_rate=1e-6),
    )
    worker = LearnerWorker(
        LearnerSpec(
            model_path=asked.model,
            dtype="bfloat16",
            seed=0,
            config=config,
            loss=LossConfig(constant=10_000),
            temperature=1.0,
            objective="policy",
            total_steps=100,
        )
    )
    worker.setup("127.0.0.1", 29611)
    _measure(asked, worker, trees, row_tokens)
    os._exit(0)  # process groups keep a finished interpreter waiting


def tree(thought: int, answer: int) -> Sample:
    """A prompt, a thought of `thought` tokens, and answers of `answer` tokens at every cut."""
    rng = np.random.default_rng(0)

    def segment(parent: int, cut: int, kind: Kind, tokens: int) -> Segment:
        return Segment(
            parent=parent,
            cut=cut,
            kind=kind,
            token_ids=rng.integers(3, 150_000, tokens).astype(np.int32),
            logprobs=np.full(tokens, -11.9, np.float32) if kind.sampled else None,
            versions=(0, 0) if kind.sampled else None,
        )

    segments = [
        segment(NO_PARENT, 0, Kind.PROMPT, PROMPT_TOKENS),
        segment(0, PROMPT_TOKENS, Kind.THOUGHT, thought),
    ]
    for number in range(1, CUTS + 1):
        segments.append(segment(1, thought * number // CUTS, Kind.FORCED, FORCED_TOKENS))
        forced = len(segments) - 1
        segments += [segment(forced, FORCED_TOKENS, Kind.ANSWER, answer) for _ in range(ANSWERS)]
    advantages = tuple(
        rng.normal(size=len(s.token_ids)).astype(np.float32) if s.kind.sampled else None
        for s in segments
    )
    return Sample(segments=tuple(segments), advantages=advantages)


def visible_pairs(sample: Sample) -> int:
    """Pairs of query and key that the tree mask leaves visible."""
    starts: list[int] = []
    pairs = 0
    for segment in sample.segments:
        start = 0 if segment.parent == NO_PARENT else starts[segment.parent] + segment.cut
        starts.append(start)
        tokens = len(segment.token_ids)
        pairs += tokens * start + tokens * (tokens + 1) // 2
    return pairs


def model_flops(worker: LearnerWorker, trees: list[Sample]) -> float:
    """FLOPs of one forward and backward pass."""
    cost = step_cost(worker.module)
    return (
        cost.token * sum(t.num_tokens for t in trees)
        + cost.predicted * sum(t.num_trained for t in trees)
        + cost.pair * sum(map(visible_pairs, trees))
    )


def _measure(
    asked: argparse.Namespace, worker: LearnerWorker, trees: list[Sample], row_tokens: int
) -> None:
    sizes = [[(t.num_tokens, t.num_trained) for t in trees]]
    plan = make_plan(sizes, row_tokens=row_tokens, ranks=1, optimizer_steps=1)[0]
    torch.cuda.reset_peak_memory_stats()
    seconds: list[float] = []
    metrics: dict[str, float] = {}
    for _ in range(asked.steps):
        torch.cuda.synchronize()
        started = time.monotonic()
        metrics = worker.step(plan, tuple(trees))
        torch.cuda.synchronize()
        seconds.append(time.monotonic() - started)
    median = statistics.median(seconds[1:])
    tokens = sum(t.num_tokens for t in trees)
    row = {
        "job": asked.job,
        "checkpointing": asked.checkpointing,
        "compile": not asked.no_compile,
        "logits_chunk": asked.logits_chunk,
        "row_tokens": plan.row_tokens,
        "tokens": tokens,
        "padding_share": round(metrics["padding_share"], 3),
        "first_s": round(seconds[0], 2),
        "median_s": round(median, 3),
        "tokens_per_s": round(tokens / median),
        "mfu": round(model_flops(worker, trees) / median / PEAK_FLOPS, 3),
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 1),
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
    }
    print(json.dumps(row), flush=True)
    with asked.out.open("a") as file:
        file.write(json.dumps(row) + "\n")
    if asked.profile:
        _profile(asked.profile, worker, plan, trees)


def _profile(path: Path, worker: LearnerWorker, plan: RankPlan, trees: list[Sample]) -> None:
    """Write the kernels of one step, those that take longest first, and when the card was idle."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        worker.step(plan, tuple(trees))
        torch.cuda.synchronize()
    kernels = profiler.key_averages()
    table = kernels.table(sort_by="self_cuda_time_total", row_limit=60, max_name_column_width=120)
    path.write_text(f"{_idle(profiler.events())}\n\n{table}")


def _idle(events: Iterable[torch.autograd.profiler_util.FunctionEvent]) -> str:
    """Describe the times in which nothing ran on the card, the longest first."""
    on_card = [e for e in events if e.device_type == torch.autograd.DeviceType.CUDA]
    on_card.sort(key=lambda event: event.time_range.start)
    gaps: list[tuple[float, str]] = []
    begin = end = on_card[0].time_range.start
    before = "nothing"
    for event in on_card:
        gap = event.time_range.start - end
        if gap > 0:
            at = (end - begin) / 1000
            gaps.append((gap / 1000, f"at {at:.0f} ms, {before[:60]} -> {event.name[:60]}"))
        if event.time_range.end > end:
            end, before = event.time_range.end, event.name
    total = sum(gap for gap, _ in gaps)
    lines = [f"idle {total:.1f} of {(end - begin) / 1000:.1f} ms between the first and last kernel"]
    longest = sorted(gaps, reverse=True)[:30]
    return "\n".join([*lines, *(f"{gap:.2f} ms {where}" for gap, where in longest)])


if __name__ == "__main__":
    main()
