"""Learners of several ranks without Ray: each rank is a process that this module starts."""

from __future__ import annotations

import multiprocessing
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import one_rank
import torch

from learner import engine
from learner.plan import make_plan
from learner.spec import LearnerSpec
from learner.worker import LearnerWorker
from rlsys.config import LearnerConfig, OptimizerConfig

Groups = one_rank.Groups

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, kw_only=True)
class Job:
    """A learner that may load a checkpoint, trains, saves, and trains on."""

    model_path: str
    groups: Groups
    stage: int
    load: Path | None = None
    steps_before_save: int = 0
    save: Path
    steps_after: int = 2
    dtype: Literal["float32", "bfloat16"] = "float32"
    sub_group_size: int | None = None
    """Elements of a flat vector at stage 3; DeepSpeed's default is larger than any test model."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Further keywords of LearnerConfig."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What rank 0 saw."""

    saved: dict[str, tuple[np.ndarray, ...]]
    """Weight and moments of every trained parameter when the checkpoint was saved, as DeepSpeed
    gathers them; the moments are left out of a learner that has just loaded."""
    random: float
    """A random number drawn after the save."""
    metrics: list[dict[str, float]]
    """Of the steps after the save."""
    weights: dict[str, np.ndarray]
    """At the end."""


def run(ranks: int, jobs: Sequence[Job]) -> list[Outcome]:
    """Run the jobs one after the other on `ranks` processes; return what rank 0 saw."""
    first, *_ = on_ranks(ranks, work, jobs)
    return first


def on_ranks(ranks: int, function: Callable[[int, int, int, T], R], argument: T) -> list[R]:
    """Call function(rank, ranks, port, argument) on processes that live as long as this call."""
    context, port = multiprocessing.get_context("spawn"), free_port()
    with ProcessPoolExecutor(ranks, context) as processes:
        calls = [processes.submit(function, rank, ranks, port, argument) for rank in range(ranks)]
        return [call.result() for call in calls]


def free_port() -> int:
    """Return a port that nobody uses at the moment."""
    with socket.socket() as free:
        free.bind(("", 0))
        return int(free.getsockname()[1])


def work(rank: int, ranks: int, port: int, jobs: Sequence[Job]) -> list[Outcome]:
    """All jobs, seen from one rank."""
    torch.set_num_threads(1)
    return [_work(rank, ranks, port, job) for job in jobs]


def _work(rank: int, ranks: int, port: int, job: Job) -> Outcome:
    optimizer = OptimizerConfig(learning_rate=3e-3, max_grad_norm=0.5, schedule="linear")
    spec = LearnerSpec(
        model_path=job.model_path,
        dtype=job.dtype,
        seed=0,
        config=LearnerConfig(
            ranks=ranks,
            zero_stage=job.stage,
            row_tokens=one_rank.ROW_TOKENS,
            micro_batch_rows=1,
            optimizer=optimizer,
            **job.settings,
        ),
        loss=one_rank.LOSS,
        temperature=0.8,
        objective="policy",
        total_steps=10,
        rank=rank,
    )
    worker = LearnerWorker(spec)
    configuration = engine._configuration
    if job.sub_group_size is not None:
        size = job.sub_group_size

        def smaller(spec: LearnerSpec) -> dict[str, Any]:
            found: dict[str, Any] = configuration(spec)
            found["zero_optimization"]["sub_group_size"] = size
            return found

        engine._configuration = smaller
    try:
        worker.setup("127.0.0.1", port)
    finally:
        engine._configuration = configuration
    if job.load is not None:
        worker.load(job.load)
    for _ in range(job.steps_before_save):
        torch.rand(rank + 1)
        _step(worker, spec, job.groups)
    saved = gathered_state(worker, moments=job.steps_before_save > 0)
    worker.save(job.save)
    random = float(torch.rand(()))
    metrics = [_step(worker, spec, job.groups) for _ in range(job.steps_after)]
    return Outcome(
        saved=saved,
        random=random,
        metrics=metrics,
        weights={name: value[0] for name, value in gathered_state(worker, moments=False).items()},
    )


def _step(worker: LearnerWorker, spec: LearnerSpec, groups: Groups) -> dict[str, float]:
    sizes = [[(s.num_tokens, s.num_trained) for s in group] for group in groups]
    plans = make_plan(
        sizes, row_tokens=one_rank.ROW_TOKENS, ranks=spec.config.ranks, optimizer_steps=1
    )
    plan = plans[spec.rank]
    return worker.step(plan, *(groups[g] for g in plan.groups))


def gathered_state(worker: LearnerWorker, *, moments: bool) -> dict[str, tuple[np.ndarray, ...]]:
    """Weight and moments of every trained parameter, gathered; all ranks call it together."""
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

    found = {}
    for name, parameter in worker.engine.module.named_parameters():
        if not parameter.requires_grad:
            continue
        kinds = ["exp_avg", "exp_avg_sq"] if moments else []
        if worker.zero_stage == 0:
            state = worker.engine.optimizer.state[parameter] if moments else {}
            tensors = [parameter, *(state[kind] for kind in kinds)]
        else:
            tensors = [safe_get_full_fp32_param(parameter)]
            tensors += [safe_get_full_optimizer_state(parameter, kind) for kind in kinds]
        found[name] = tuple(t.detach().float().flatten().cpu().numpy().copy() for t in tensors)
    return found
