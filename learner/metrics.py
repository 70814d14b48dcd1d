"""Metrics of a training step, from sums over its optimizer steps and ranks.

Sums are added first and divided once at the end; a mean of means would weigh short parts too much.
"""

from __future__ import annotations

import resource
from collections.abc import Mapping, Sequence

import torch

from rlsys.algorithms.loss import is_max, merge_metrics, summarise

Sums = dict[str, torch.Tensor]
"""Metric sums by name; rlsys.algorithms.loss states how two of them join."""

RUN_NAMES = {
    "engine_gap_mean": "gap/mean",
    "engine_gap_max": "gap/max",
    "kl_k3_mean": "kl",
    "entropy_mean": "entropy",
    "tokens_per_s": "tokens_per_s/training",
    **{name: name for name in ("loss", "grad_norm", "learning_rate", "skipped", "skipped_in_row")},
}
"""Metrics of a rank that have a name of their own in a run's metrics file."""


def run_names(metrics: Mapping[str, float]) -> dict[str, float]:
    """Name a rank's metrics as a run does: by RUN_NAMES, every other one below `learner/`."""
    return {RUN_NAMES.get(name, f"learner/{name}"): value for name, value in metrics.items()}


def peak_bytes(device: torch.device) -> int:
    """Return the most memory that this process has had so far on a device.

    On a GPU that is what torch allocated; its allocator and the CUDA context hold more. On the CPU
    it is the resident memory of the whole process.
    """
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10  # Linux reports KiB


def step_metrics(
    sums: Sequence[Sums],
    *,
    packed: int,
    slots: int,
    seconds: Mapping[str, float],
    peak_bytes: int,
    flops: float,
    peak_flops: float | None,
    device: torch.device,
    sequence_ranks: int = 1,
) -> dict[str, float]:
    """Return the metrics of a training step, the same on every rank; all ranks call it.

    Args:
        sums: this rank's sums of every optimizer step that was applied, `loss` among them.
        packed: tokens in this rank's rows.
        slots: room for tokens in this rank's rows, padding included.
        seconds: wall-clock time of the parts of the step, `step` being the whole.
        peak_bytes: most memory that this rank has had so far.
        flops: what the model needs for this rank's rows (learner.flops).
        peak_flops: FLOP/s of this rank's card, None where unknown.
        sequence_ranks: ranks that have the same rows, and so the same sums.
    """
    local: Sums = {}
    for part in sums:
        local = merge_metrics(local, part) if local else part
    largest = {"peak_bytes": peak_bytes, **seconds}
    numbers = {"packed": packed, "slots": slots, "flops": flops}
    numbers |= {f"{k}_max": v for k, v in largest.items()}
    tensors = {k: torch.tensor(float(v), device=device) for k, v in numbers.items()}
    total = _join_ranks({**local, **tensors}, sequence_ranks)

    tokens, room = float(total.pop("packed")), float(total.pop("slots"))
    metrics = {f"seconds_{part}": float(total.pop(f"{part}_max")) for part in seconds}
    metrics["peak_gib"] = float(total.pop("peak_bytes_max")) / 2**30
    metrics["tokens_packed"] = tokens
    metrics["padding_share"] = 1.0 - tokens / room
    metrics["tokens_per_s"] = tokens / metrics["seconds_step"]
    rank_flops = float(total.pop("flops")) / torch.distributed.get_world_size()
    metrics["tflops"] = rank_flops / metrics["seconds_step"] / 1e12
    if peak_flops is not None:
        metrics["mfu"] = metrics["tflops"] * 1e12 / peak_flops
    if sums:
        metrics["loss"] = float(total.pop("loss")) / len(sums)
        metrics |= summarise(total)
        metrics["tokens_trained"] = metrics.pop("tokens")
    return metrics


def _join_ranks(sums: Sums, sequence_ranks: int) -> Sums:
    """Return the larger of each maximum over ranks, and the total of the rest, on the CPU.

    Ranks that share their rows count once.
    """
    joined: Sums = {}
    operations = torch.distributed.ReduceOp
    for keep_max, operation in ((False, operations.SUM), (True, operations.MAX)):
        names = sorted(name for name in sums if is_max(name) == keep_max)
        values = torch.stack([sums[name].detach().double() for name in names])
        torch.distributed.all_reduce(values, operation)
        if not keep_max:
            values /= sequence_ranks
        joined |= dict(zip(names, values.cpu(), strict=True))
    return joined
