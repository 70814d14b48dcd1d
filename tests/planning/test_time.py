"""Seconds: rooflines worked by hand, and the speeds that were measured on GPUs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from model_shapes import QWEN2_1_5B

from learner.gradient_checkpointing import asked_layers
from rlsys.planning.cards import CARDS, Card
from rlsys.planning.sync import sync_stage
from rlsys.planning.time import (
    GenerationLoad,
    Stage,
    StepTime,
    TrainingLoad,
    generation_stages,
    seconds_of,
    training_stages,
)
from rlsys.planning.workload import EpisodeTree, LearnerRows

MEASURED = Path(__file__).parents[2] / "benchmarks/results/learner_trunk_H200.jsonl"
H100, H200 = CARDS["h100"], CARDS["h200"]
MEASURED_TREE = EpisodeTree(
    prompt=100,
    thought=8000,
    branches=((2000, 4), (4000, 4), (6000, 4), (8000, 4)),
    forced=8,
    answer=118,
)


SHORT_TREE = EpisodeTree(
    prompt=100,
    thought=1000,
    branches=((250, 4), (500, 4), (750, 4), (1000, 4)),
    forced=8,
    answer=32,
)


def training(rows: LearnerRows, *, checkpointed: int, compiled: bool) -> TrainingLoad:
    return TrainingLoad(
        shape=QWEN2_1_5B,
        itemsize=2,
        tree=MEASURED_TREE,
        trees=8,
        rows=rows,
        trained_parameters=QWEN2_1_5B.parameters,
        ranks=1,
        optimizer_steps=1,
        checkpointed=checkpointed,
        compiled=compiled,
        extra_forwards=0,
    )


def generation(tree: EpisodeTree, episodes: int) -> GenerationLoad:
    return GenerationLoad(
        shape=QWEN2_1_5B,
        itemsize=2,
        tree=tree,
        episodes=episodes,
        engines=1,
        tensor_parallel=1,
        max_sequences=512,
        cache_tokens=10**7,
        graphs=True,
    )


def test_the_learner_is_as_fast_as_measured() -> None:
    for row in map(json.loads, MEASURED.read_text().splitlines()):
        short = row["job"] == "short"
        # Trees of several lengths are not planned, nor kernels that the learner does not use.
        if row["job"] == "uneven" or (row["trunk"] != "cudnn" and not short):
            continue
        rows = LearnerRows(
            row_tokens=row["row_tokens"],
            rows=16 if short else 8,
            passes=8,
            rows_per_pass=2 if short else 1,
            trees_per_row=4 if short else 1,
        )
        load = training(rows, checkpointed=asked_layers(row["checkpointing"], 28), compiled=True)
        if short:
            load = replace(load, tree=SHORT_TREE, trees=64)
        # The logits are computed twice where the entropy is trained.
        load = replace(load, entropy_trained=row["logits"] == "twice")
        planned = seconds_of(training_stages(load, H200))
        assert planned == pytest.approx(row["median_s"], rel=0.1), row


def test_kept_slopes_save_one_product_and_its_logits() -> None:
    rows = LearnerRows(row_tokens=10_240, rows=8, passes=8, rows_per_pass=1, trees_per_row=1)
    kept = training(rows, checkpointed=0, compiled=True)
    again = replace(kept, entropy_trained=True)
    saved = seconds_of(training_stages(again, H200)) - seconds_of(training_stages(kept, H200))
    logits = 8 * MEASURED_TREE.sampled * 151_936
    product_s = 2 * 1536 * logits / (0.7 * H200.flops)
    assert saved == pytest.approx(product_s + 3 * 4 * logits / H200.bandwidth)
    # Further forward passes keep nothing and cost the same in both cases.
    more = [replace(load, extra_forwards=1.0) for load in (kept, again)]
    slower, slowest = (seconds_of(training_stages(load, H200)) for load in more)
    assert slowest - slower == pytest.approx(saved)


def test_generation_is_as_fast_as_measured() -> None:
    """512 streams of 512 tokens at 42,800 and 51,300 tokens/s in two calls on one card."""
    tree = EpisodeTree(prompt=100, thought=512)
    _, thoughts = generation_stages(generation(tree, 512), H200)
    assert 512 * 512 / thoughts.seconds == pytest.approx(47_000, rel=0.1)
    assert thoughts.bound == "host"


def test_a_sync_is_as_fast_as_measured() -> None:
    assert sync_stage(QWEN2_1_5B, 2, "nccl", H200).seconds == pytest.approx(0.09, abs=0.02)
    assert sync_stage(QWEN2_1_5B, 2, "ipc", H200).seconds == pytest.approx(0.135, abs=0.01)


SLOW = Card(name="slow", memory_gib=1, flops=1e9, bandwidth=1e6, link=1e6)


def test_decoding_reads_weights_and_cache_once_a_step() -> None:
    tree = EpisodeTree(prompt=100, thought=10)
    _, thoughts = generation_stages(generation(tree, 4), SLOW)
    weights, cache = 2 * 1_543_714_304, 4 * 105 * 28_672
    logits = 10 * 4 * 4 * 151_936
    assert thoughts.floor_s == pytest.approx(10 * (weights + cache + logits) / 1e6)
    assert thoughts.bound == "memory bandwidth"


def test_long_thoughts_are_bound_by_the_host_first_and_then_by_the_card() -> None:
    # 32 streams take the host 2.5 ms + 32 x 15 us = 2.98 ms a step. At half the card's bandwidth
    # weights and logits take 1.37 ms, and 8,000 tokens of context 3.06 ms more.
    card = Card(name="made up", memory_gib=1, flops=1e18, bandwidth=4.8e12, link=1e9)
    tree = EpisodeTree(prompt=1, thought=8000)
    _, thoughts = generation_stages(generation(tree, 32), card)
    first, last, host = 1.368e-3, 4.427e-3, 2.98e-3
    step = host + (last - host) ** 2 / (2 * (last - first))
    assert thoughts.seconds == pytest.approx(8000 * step + 32 * 0.5e-3, rel=1e-3)
    # A fast card leaves all to the host, and a slow one all to itself.
    fast, slow = (replace(card, bandwidth=bandwidth) for bandwidth in (1e15, 1e12))
    _, by_host = generation_stages(generation(tree, 32), fast)
    assert by_host.seconds == pytest.approx(8000 * host + 32 * 0.5e-3)
    _, by_card = generation_stages(generation(tree, 32), slow)
    assert by_card.seconds == pytest.approx(by_card.card_s + 32 * 0.5e-3)


def test_sequences_that_do_not_fit_at_once_take_turns() -> None:
    tree = EpisodeTree(prompt=100, thought=10)
    once = generation_stages(generation(tree, 512), H100)[1]
    twice = generation_stages(generation(tree, 1024), H100)[1]
    assert twice.seconds == pytest.approx(2 * once.seconds)


def test_small_passes_are_bound_by_kernel_launches() -> None:
    tree = EpisodeTree(prompt=10, thought=100)
    rows = LearnerRows(row_tokens=128, rows=8, passes=8, rows_per_pass=1, trees_per_row=1)
    load = TrainingLoad(
        shape=QWEN2_1_5B,
        itemsize=2,
        tree=tree,
        trees=8,
        rows=rows,
        trained_parameters=1,
        ranks=1,
        optimizer_steps=1,
        checkpointed=0,
        compiled=False,
        extra_forwards=0,
    )
    compute, update = training_stages(load, H100)
    assert compute.bound == "host"
    # 8 passes x 28 layers x 140 kernels x 7 microseconds
    assert compute.seconds == pytest.approx(0.1 + 8 * 28 * 140 * 7e-6)
    assert update.seconds < 1e-6


def stage(seconds: float, card_s: float) -> Stage:
    return Stage(name="", seconds=seconds, bound="host", card_s=card_s, floor_s=0)


def test_sides_run_one_after_the_other_or_beside_each_other() -> None:
    parts = {"generation": (stage(6, 2),), "training": (stage(3, 3),), "sync": stage(1, 0)}
    split = StepTime(**parts, shared=False)  # type: ignore[arg-type]
    shared = StepTime(**parts, shared=True)  # type: ignore[arg-type]
    assert (split.synchronous, split.asynchronous) == (10, 6)
    # 3 + 1 seconds of the learner and 2 seconds in which the engine computes fit into 6.
    assert shared.asynchronous == 6
    busy = StepTime(**{**parts, "generation": (stage(6, 5),)}, shared=True)  # type: ignore[arg-type]
    assert busy.asynchronous == 9
