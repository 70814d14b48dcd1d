"""A learner of one rank in the test's own process, real DeepSpeed."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any, Literal

from learner.plan import make_plan
from learner.spec import LearnerSpec
from learner.worker import LearnerWorker
from rlsys.config import DistillationConfig, LearnerConfig, LossConfig, OptimizerConfig
from rlsys.types import Sample

Groups = Sequence[tuple[Sample, ...]]

LOSS = LossConfig(constant=16)
ROW_TOKENS = 64


def start(
    path: str,
    *,
    dtype: Literal["float32", "bfloat16"] = "float32",
    objective: Literal["policy", "nll", "rpo"] = "policy",
    loss: LossConfig = LOSS,
    rate: float = 3e-3,
    max_grad_norm: float = 0.5,
    betas: tuple[float, float] = (0.9, 0.95),
    temperature: float = 0.8,
    offload: Literal["cpu"] | None = None,
    distillation: DistillationConfig | None = None,
    **config: Any,
) -> LearnerWorker:
    """A worker that is set up; further keywords go to LearnerConfig.

    Workers may follow one another in a process: all but the first find the group they need.
    """
    optimizer = OptimizerConfig(
        learning_rate=rate, max_grad_norm=max_grad_norm, betas=betas, offload=offload
    )
    spec = LearnerSpec(
        model_path=path,
        dtype=dtype,
        seed=0,
        config=LearnerConfig(optimizer=optimizer, **{"row_tokens": ROW_TOKENS, **config}),
        loss=loss,
        temperature=temperature,
        distillation=distillation,
        objective=objective,
        total_steps=10,
    )
    worker = LearnerWorker(spec)
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    worker.setup("127.0.0.1", port)
    return worker


def train(worker: LearnerWorker, groups: Groups, optimizer_steps: int = 1) -> dict[str, float]:
    """One training step of a single rank."""
    sizes = [[(s.num_tokens, s.num_trained) for s in group] for group in groups]
    (plan,) = make_plan(sizes, row_tokens=ROW_TOKENS, ranks=1, optimizer_steps=optimizer_steps)
    return worker.step(plan, *(groups[g] for g in plan.groups))
