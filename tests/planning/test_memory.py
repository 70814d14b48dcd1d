"""Memory: numbers worked by hand, and the peaks that were measured on a GPU."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from model_shapes import QWEN2_1_5B, TOY, needs, one_row

from learner.gradient_checkpointing import asked_layers
from rlsys.planning.cards import GIB
from rlsys.planning.logprob_head import head_bytes
from rlsys.planning.memory import (
    EngineNeeds,
    engine_memory,
    free_blocks,
    learner_memory,
    total,
)

RESULTS = Path(__file__).parents[2] / "benchmarks/results"
BEFORE = RESULTS / "learner_speed_H200.jsonl"
TODAY = RESULTS / "learner_trunk_H200.jsonl"


def test_peaks_are_those_that_were_measured() -> None:
    rows = [json.loads(line) for line in TODAY.read_text().splitlines()]
    for row in (row for row in rows if row["gradients"] == "added"):
        short = row["job"] == "short"
        planned = learner_memory(
            needs(
                QWEN2_1_5B,
                # Of the short job two rows of 6,656 tokens at once, with 4 trees each.
                rows=one_row(row["row_tokens"] * (2 if short else 1)),
                predicted=2 * 4 * (1000 + 16 * 32) if short else 8000 + 16 * 118,
                checkpointed=asked_layers(row["checkpointing"], 28),
                compiled=True,
                logits_chunk=row["logits_chunk"],
            )
        )
        assert planned.peak / GIB == pytest.approx(row["peak_gib"], rel=0.05), row


def test_peaks_of_an_older_learner() -> None:
    # It kept the gradients in bfloat16, 2 bytes each, and copied keys and values to all heads,
    # 1.4 GiB more than now. And it computed logits twice in every case, as the head now does where
    # the entropy is trained.
    for row in map(json.loads, BEFORE.read_text().splitlines()):
        short = row["job"] == "short"
        planned = learner_memory(
            needs(
                QWEN2_1_5B,
                # Of the short job two rows of 8,192 tokens at once, with 5 trees each.
                rows=one_row(row["row_tokens"] * (2 if short else 1)),
                predicted=2 * 5 * (1000 + 16 * 32) if short else 8000 + 16 * 118,
                checkpointed=asked_layers(row["checkpointing"], 28),
                compiled=row["compile"],
                logits_chunk=row["logits_chunk"],
                entropy_trained=True,
            )
        )
        peak = planned.peak + 2 * QWEN2_1_5B.parameters
        assert peak / GIB == pytest.approx(row["peak_gib"], rel=0.03), row


def test_bytes_per_parameter_of_every_stage() -> None:
    """Weights + sums of gradients + master weights + moments, by hand, for 8 ranks."""
    million = replace(TOY, vocabulary=1_000_000)
    parameters = million.parameters
    gathered = million.head_parameters + 50_000_000
    cases = [
        # itemsize, stage, ranks, bytes
        (2, 0, 1, 18 * parameters),  # stage 0 runs as 1 in bfloat16
        (2, 1, 1, (2 + 4 + 4 + 8) * parameters),
        (2, 1, 8, (2 + 4) * parameters + 12 * (parameters // 8)),
        (2, 2, 8, 2 * parameters + 16 * (parameters // 8)),
        (2, 3, 8, 2 * (parameters // 8 + gathered) + 16 * (parameters // 8)),
        (4, 0, 1, 16 * parameters),
        (4, 1, 8, 8 * parameters + 12 * (parameters // 8)),
        (4, 2, 8, 4 * parameters + 16 * (parameters // 8)),
    ]
    assert parameters % 8 == 0
    for itemsize, stage, ranks, expected in cases:
        memory = learner_memory(needs(million, itemsize=itemsize, zero_stage=stage, ranks=ranks))
        assert total(memory.states) == expected, (itemsize, stage, ranks)


def test_frozen_weights_have_neither_gradients_nor_moments() -> None:
    memory = learner_memory(needs(QWEN2_1_5B, trained=1_000_000))
    assert total(memory.states) == 2 * QWEN2_1_5B.parameters + 16 * 1_000_000


def test_frozen_models_and_a_sync_take_memory_for_the_whole_run() -> None:
    plain = learner_memory(needs(TOY))
    both = learner_memory(needs(TOY, reference=True, teacher=500, kept_for_sync=1000))
    assert both.peak - plain.peak == 2 * TOY.parameters + 1500


def test_the_head_by_hand() -> None:
    # The last norm saves 8 x 64 + 4 bytes of 128 tokens; hidden states and their gradients are
    # 2 x 2 x 64 bytes of 100 tokens. A chunk of 64 tokens has 6,400 logits, and the output
    # embedding 6,400 numbers: 4 x 6,400 + 10 x 6,400 bytes are as many as 8 x 6,400 + 6 x 6,400.
    toy = needs(TOY, entropy_trained=True)
    assert head_bytes(toy) == 128 * 516 + 100 * 256 + 14 * 6400
    assert head_bytes(needs(TOY, checkpointed=1)) == head_bytes(toy)
    # A frozen head has no gradient.
    assert head_bytes(replace(toy, trained=10)) == 128 * 516 + 100 * 256 + 10 * 6400
    # There is no chunk before the only one.
    whole = replace(toy, logits_chunk=100)
    assert head_bytes(whole) == 128 * 516 + 100 * 256 + 8 * 6400 + 6 * 10_000


def test_the_head_with_slopes_by_hand() -> None:
    # 100 tokens have 10,000 slopes of 2 bytes, and 6,400 hidden numbers of 2 bytes.
    kept = 128 * 516 + 2 * 10_000 + 2 * 6400
    # The gradient of the hidden states and the scaled hidden states, 2 bytes each, and the gradient
    # of the embedding's 6,400 numbers in 4 and in 2 bytes. The logits of a chunk are as many.
    assert head_bytes(needs(TOY)) == kept + 2 * 2 * 6400 + 6 * 6400
    # With a frozen head, the gradient of the hidden states in 4 and in 2 bytes.
    assert head_bytes(needs(TOY, trained=10)) == kept + 6 * 6400
    # A chunk of all tokens has 10,000 float32 logits.
    assert head_bytes(needs(TOY, trained=10, logits_chunk=100)) == kept + 4 * 10_000
    # In float32 no number is rounded, and every one has 4 bytes.
    wide = 128 * (64 * 12 + 4) + 4 * (10_000 + 6400)
    assert head_bytes(needs(TOY, itemsize=4)) == wide + 4 * 3 * 6400


def test_slopes_take_two_bytes_per_predicted_token_and_entry_of_the_vocabulary() -> None:
    few, many = (
        head_bytes(needs(QWEN2_1_5B, rows=one_row(20_480), predicted=predicted))
        for predicted in (8_000, 18_000)
    )
    # 2.83 GiB of slopes, and 6 bytes per number of the hidden states and their gradients
    assert many - few == 10_000 * (2 * 151_936 + 6 * 1536)


def test_an_offloaded_optimizer_leaves_the_weights_on_the_card() -> None:
    memory = learner_memory(needs(TOY, zero_stage=2, offload=True))
    assert [part.name for part in memory.states] == ["weights"]
    assert memory.update == ()
    assert memory.backward == learner_memory(needs(TOY, zero_stage=2)).backward


def test_free_blocks_are_the_smaller_of_backward_pass_and_update_and_gaps() -> None:
    # The update needs 4 bytes per weight, the backward pass what its parts say.
    memory = learner_memory(needs(TOY))
    backward, update = total(memory.backward), 4 * TOY.parameters
    assert backward != update
    free = free_blocks(memory)
    assert free.given_back
    assert free.size == min(backward, update) + int(0.3 * (backward + update))
    # Nothing is free without an update on the card but the gaps.
    offloaded = learner_memory(needs(TOY, zero_stage=2, offload=True))
    assert free_blocks(offloaded).size == int(0.3 * total(offloaded.backward))


def engine(**changes: object) -> EngineNeeds:
    base = EngineNeeds(
        shape=QWEN2_1_5B,
        itemsize=2,
        tensor_parallel=1,
        max_sequences=256,
        longest=8192,
        cache_bytes=None,
        utilization=0.5,
        device_memory=80 * GIB,
        graphs=True,
        received=0,
        cache_itemsize=2,
        batch_tokens=8192,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def test_a_cache_takes_what_weights_and_workspace_leave() -> None:
    memory = engine_memory(engine())
    sizes = {part.name: part.size for part in memory.parts}
    assert sizes["weights"] == 3_087_428_608
    assert sizes["weights"] + sizes["workspace"] + sizes["KV cache"] == 40 * GIB
    assert memory.cache_tokens == sizes["KV cache"] // 28_672
    assert memory.streams == memory.cache_tokens // 8192


def test_a_cache_of_a_given_size() -> None:
    memory = engine_memory(engine(cache_bytes=1 << 30))
    assert memory.cache_tokens == (1 << 30) // 28_672
    assert memory.streams == 4


def test_an_fp8_cache_holds_twice_the_tokens_and_long_steps_leave_less_room() -> None:
    memory = engine_memory(engine(cache_bytes=1 << 30, cache_itemsize=1))
    assert memory.cache_tokens == (1 << 30) // 14_336
    short, long = (engine_memory(engine(batch_tokens=tokens)) for tokens in (8192, 16_384))
    assert long.cache_tokens < short.cache_tokens


def test_tensor_parallel_splits_weights_and_heads() -> None:
    one, two, four = (
        engine_memory(engine(tensor_parallel=cards, cache_bytes=cards << 30)) for cards in (1, 2, 4)
    )
    assert two.cache_tokens == 2 * one.cache_tokens == 74_898
    # There are two heads of keys and values, so four cards hold each of them twice.
    assert four.cache_tokens == two.cache_tokens
    assert {part.name: part.size for part in two.parts}["weights"] == 3_087_428_608 // 2


def test_an_engine_without_room_has_no_cache() -> None:
    memory = engine_memory(engine(utilization=0.04))
    assert memory.cache_tokens < 0
    assert memory.streams == 0
