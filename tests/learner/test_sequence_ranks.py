"""Ranks that share rows: the exchange, the whole learner against one rank, what is refused."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from forests import tiny_model
from one_rank import LOSS, Groups
from rank_processes import free_port, gathered_state, on_ranks

from learner.batch import MicroBatch, micro_batches
from learner.plan import RankPlan, make_plan
from learner.sequence import receive_heads, receive_tokens, send_heads, send_tokens
from learner.spec import LearnerSpec
from learner.worker import LearnerWorker
from rlsys.config import (
    DistillationConfig,
    LearnerConfig,
    LoraConfig,
    LossConfig,
    ModelConfig,
    OptimizerConfig,
)
from rlsys.errors import ModelError
from rlsys.model_types import check_shared_rows

ROW_TOKENS = 80
"""Three trees, so that the cuts between ranks go through trees and not between them."""
CANARY = [np.arange(5, dtype=np.int32), np.array([7, 3, 1, 1, 9, 30, 2], np.int32)]


def exchanged(sent: list[torch.Tensor]) -> list[torch.Tensor]:
    """What an all-to-all delivers: rank n gets the n-th part of every rank."""
    return [torch.stack([rank[n] for rank in sent]) for n in range(len(sent))]


def test_heads_for_tokens_and_back() -> None:
    """Two rows of twelve tokens on three ranks, six query heads and three key heads."""
    query, key = torch.randn(2, 6, 12, 4), torch.randn(2, 3, 12, 4)
    parts = [(query[:, :, s : s + 4], key[:, :, s : s + 4]) for s in (0, 4, 8)]
    received = exchanged([send_heads(part, 3) for part in parts])
    for rank in range(3):
        queries, keys = receive_heads(received[rank], [2, 1])
        assert torch.equal(queries, query[:, 2 * rank : 2 * rank + 2])
        assert torch.equal(keys, key[:, rank : rank + 1])
    out_RTHD = query.transpose(1, 2)
    heads = [send_tokens(out_RTHD[:, :, 2 * rank : 2 * rank + 2], 3) for rank in range(3)]
    for rank, back in enumerate(exchanged(heads)):
        assert torch.equal(receive_tokens(back), out_RTHD[:, 4 * rank : 4 * rank + 4])


@dataclass(frozen=True, kw_only=True)
class Job:
    """Two training steps of a learner."""

    model_path: str
    groups: Groups
    sequence_ranks: int
    objective: Literal["policy", "rpo"] = "policy"
    optimizer_steps: int = 1
    loss: LossConfig = LOSS
    distillation: DistillationConfig | None = None
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Seen:
    """What one rank saw."""

    logprobs: list[np.ndarray]
    """Log-probs and entropies [2, R, T] of the micro-batches before training."""
    canary: list[np.ndarray]
    metrics: list[dict[str, float]]
    state: dict[str, tuple[np.ndarray, ...]]
    """Weights and moments at the end; the first moment holds the sum of the gradients."""


def plans_of(groups: Groups, config: LearnerConfig, optimizer_steps: int) -> list[RankPlan]:
    sizes = [[(s.num_tokens, s.num_trained) for s in group] for group in groups]
    return make_plan(
        sizes, row_tokens=ROW_TOKENS, ranks=config.data_parallel, optimizer_steps=optimizer_steps
    )


def config_of(job: Job, ranks: int) -> LearnerConfig:
    # With an epsilon of 1 an update is almost proportional to the gradient, so rounding stays so.
    optimizer = OptimizerConfig(learning_rate=0.3, max_grad_norm=0.5, epsilon=1.0)
    return LearnerConfig(
        ranks=ranks,
        sequence_ranks=job.sequence_ranks if ranks > 1 else 1,
        row_tokens=ROW_TOKENS,
        micro_batch_rows=2,
        optimizer=optimizer,
        **job.settings,
    )


def see(rank: int, ranks: int, port: int, jobs: list[Job]) -> list[Seen]:
    """Run all jobs on one rank, one after the other."""
    # All of them are kept: the first one holds the store with which groups of ranks are made.
    workers = [LearnerWorker(spec_of(job, config_of(job, ranks), rank)) for job in jobs]
    return [_see(rank, port, *pair) for pair in zip(workers, jobs, strict=True)]


def spec_of(job: Job, config: LearnerConfig, rank: int) -> LearnerSpec:
    return LearnerSpec(
        model_path=job.model_path,
        dtype="float32",
        seed=0,
        config=config,
        loss=job.loss,
        temperature=0.8,
        distillation=job.distillation,
        objective=job.objective,
        total_steps=10,
        optimizer_steps=job.optimizer_steps,
        rank=rank,
    )


def _see(rank: int, port: int, worker: LearnerWorker, job: Job) -> Seen:
    config = worker._spec.config
    worker.setup("127.0.0.1", port)
    plan = plans_of(job.groups, config, job.optimizer_steps)[rank // config.sequence_ranks]
    groups = [job.groups[g] for g in plan.groups]
    with torch.no_grad():
        passes = [worker._objective.forward(m, entropy=True) for m in micros(plan, groups, config)]
    return Seen(
        [torch.stack([p for p in both if p is not None]).numpy() for both in passes],
        worker.sequence_logprobs(CANARY),
        [worker.step(plan, *groups) for _ in range(2)],
        gathered_state(worker, moments=True),
    )


def micros(plan: RankPlan, groups: Groups, config: LearnerConfig) -> list[MicroBatch]:
    batches = micro_batches(
        plan,
        groups,
        LOSS,
        micro_batch_rows=config.micro_batch_rows,
        device=torch.device("cpu"),
        sequence_ranks=config.sequence_ranks,
    )
    return [micro for batch in batches for micro in batch]


def cut_branches(micro: MicroBatch, ranks: int) -> int:
    """Count first tokens of a branch whose predecessor is on another rank."""
    part = micro.token_ids_RT.shape[1] // ranks
    index_T = torch.arange(micro.token_ids_RT.shape[1])
    branch_RT = (micro.parents_RT >= 0) & (micro.parents_RT != index_T - 1)
    return int((branch_RT & (micro.parents_RT // part != index_T // part)).sum())


@pytest.mark.slow
def test_shared_rows_train_as_rows_of_one_rank(
    model_path: str, groups: Groups, pairs: Groups, tmp_path: Path
) -> None:
    """Four ranks: two groups of two, and one group of four, which has copies of key heads."""
    wide, teacher = str(tmp_path / "wide"), str(tmp_path / "teacher")
    tiny_model("qwen3").save_pretrained(wide)
    tiny_model("llama").save_pretrained(teacher)
    jobs = [
        Job(
            model_path=model_path,
            groups=groups,
            sequence_ranks=2,
            loss=LossConfig(constant=16, kl_coefficient=0.1, normalise_advantages="whiten"),
            settings={"zero_stage": 2},
        ),
        Job(
            model_path=wide,
            groups=groups,
            sequence_ranks=4,
            optimizer_steps=2,
            loss=LossConfig(constant=16, surrogate="gspo", entropy_coefficient=0.1),
            distillation=DistillationConfig(teacher=ModelConfig(path=teacher)),
            settings={"zero_stage": 3, "gradient_checkpointing": True},
        ),
        Job(
            model_path=wide,
            groups=pairs,
            sequence_ranks=4,
            objective="rpo",
            settings={"zero_stage": 0, "lora": LoraConfig(rank=2)},
        ),
    ]
    for job in jobs:
        config = config_of(job, 4)
        plan = plans_of(job.groups, config, job.optimizer_steps)[0]
        mine = micros(plan, [job.groups[g] for g in plan.groups], config)
        assert sum(cut_branches(micro, job.sequence_ranks) for micro in mine) > 1
    alone = see(0, 1, free_port(), jobs)
    for expected, job, *ranks in zip(alone, jobs, *on_ranks(4, see, jobs), strict=True):
        for seen in ranks:
            assert_alike(seen, expected, same_rows=job.sequence_ranks == 4)


def assert_alike(seen: Seen, expected: Seen, *, same_rows: bool) -> None:
    if same_rows:  # but for padding
        for ours, theirs in zip(seen.logprobs, expected.logprobs, strict=True):
            np.testing.assert_allclose(ours[..., : theirs.shape[-1]], theirs, atol=2e-5)
            assert (ours[..., theirs.shape[-1] :] == 0).all()
    for ours, theirs in zip(seen.canary, expected.canary, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-5)
    for ours_at, theirs_at in zip(seen.metrics, expected.metrics, strict=True):
        differ = ("seconds", "peak", "padd", "tokens_per", "tflops")
        kept = {name for name in theirs_at if not name.startswith(differ)}
        assert kept == {n for n in ours_at if n in kept} and len(kept) > 8
        for name in kept:
            assert ours_at[name] == pytest.approx(theirs_at[name], rel=2e-4, abs=1e-6), name
        ours_work, theirs_work = (at["tflops"] * at["seconds_step"] for at in (ours_at, theirs_at))
        assert 4 * ours_work == pytest.approx(theirs_work)  # four ranks do the work of one
    assert seen.state.keys() == expected.state.keys()
    for name, arrays in expected.state.items():
        for ours, theirs in zip(seen.state[name], arrays, strict=True):
            gap = np.linalg.norm(ours - theirs)
            assert gap <= 1e-4 * np.linalg.norm(theirs) + 1e-7, name


def test_models_whose_rows_cannot_be_shared_are_refused() -> None:
    from transformers import AutoConfig

    heads = {"num_attention_heads": 6, "num_hidden_layers": 2}
    llama = AutoConfig.for_model("llama", hidden_size=48, num_key_value_heads=2, **heads)
    windows = AutoConfig.for_model("gemma2", hidden_size=48, **heads)
    dynamic = AutoConfig.for_model("llama", hidden_size=48, **heads)
    dynamic.rope_parameters = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    check_shared_rows(llama, "folder", "model.path", 3)
    check_shared_rows(windows, "folder", "model.path", 1)
    for config, ranks, words in (
        (llama, 4, "sequence_ranks 4 .* 6 attention heads of model.path 'folder'.* divisor of 6"),
        (windows, 2, "sequence_ranks 2 needs .* packed trees"),
        (dynamic, 2, "rope_type 'dynamic'"),
    ):
        with pytest.raises(ModelError, match=words):
            check_shared_rows(config, "folder", "model.path", ranks)


def test_ranks_are_whole_groups() -> None:
    assert LearnerConfig(ranks=6, sequence_ranks=3).data_parallel == 2
    with pytest.raises(ValueError, match=r"learner\.ranks 6 .* learner\.sequence_ranks 4"):
        LearnerConfig(ranks=6, sequence_ranks=4)
