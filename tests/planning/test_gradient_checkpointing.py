"""How many layers are checkpointed: numbers worked by hand, and whole plans."""

from __future__ import annotations

from dataclasses import replace

import pytest
from model_shapes import QWEN2_1_5B, TOY, needs, one_row

from rlsys.config import RunConfig
from rlsys.config.loading import load_config
from rlsys.errors import ConfigError
from rlsys.planning.cards import CARDS, GIB
from rlsys.planning.gradient_checkpointing import fewest_layers, rank_room, reserved_parts
from rlsys.planning.layout import HOST, Place, Tenant
from rlsys.planning.memory import CONTEXT_BYTES, Part, learner_memory, total
from rlsys.planning.plan import RunPlan, Shapes, plan_run

SMALL = replace(TOY, layers=4)
NEEDS = needs(SMALL)
ALONE = (
    "learner.gpus_per_rank=1",
    "generation.gpus_per_engine=1",
    "model.dtype=bfloat16",
    "data.prompt.max_tokens=100",
    "environment.budgets=[2000,4000,6000,8000]",
)


def planned(*words: str, card: str = "h100") -> RunPlan:
    config = load_config(None, [*ALONE, *words], RunConfig)
    return plan_run(config, Shapes(policy=QWEN2_1_5B), CARDS[card])


def backward(checkpointed: int) -> int:
    return total(learner_memory(replace(NEEDS, checkpointed=checkpointed)).backward)


def test_bytes_of_a_backward_pass_by_hand() -> None:
    # Per token a layer saves 2,456 bytes, or its input of 2 x 64, and all layers share 64 bytes of
    # rotary angles. For 100 tokens the head has 162,848 bytes with slopes that are kept, and with
    # logits that are computed again 181,248 (tests/planning/test_memory.py).
    assert backward(0) == 128 * (64 + 4 * 2456) + 162_848
    assert backward(1) == 128 * (64 + 128 + 3 * 2456) + 181_248
    assert backward(3) == 128 * (64 + 3 * 128 + 2456) + 181_248 == 552_960
    # A layer that is computed again needs 2,456 bytes and gradients of 3 x 2 x 128 beside the
    # inputs. That is less than the head and a layer without checkpoint, and more than the head.
    assert backward(4) == 128 * (64 + 4 * 128 + 2456 + 768) == 486_400


def test_the_fewest_layers_that_fit() -> None:
    # 160,832 parameters have states of 18 bytes each, and the allocator takes 5 % more than the
    # peak: with two layers (2,894,976 + 850,944) x 1.05, with three (2,894,976 + 643,328) x 1.05,
    # where the update is larger than the backward pass.
    assert SMALL.parameters == 160_832
    cases = [
        (10_000_000, 0),
        (3_933_216, 2),
        (3_933_215, 3),
        (3_715_219, 3),
        (3_715_218, 4),  # four are not enough either
        (-1, 4),
    ]
    for room, expected in cases:
        assert fewest_layers(NEEDS, room) == expected, room


def test_the_room_of_a_rank() -> None:
    rank, engine = Tenant(role="learner rank", index=0), Tenant(role="engine", index=0)
    engines = {"engine": [Part("weights", 3 * GIB), Part("KV cache", 7 * GIB)]}

    def room(*places: tuple[Tenant, ...]) -> int:
        cards = [Place(name=f"card {i}", tenants=tenants) for i, tenants in enumerate(places)]
        return rank_room(cards, engines, 100 * GIB)

    assert room((rank,)) == 95 * GIB - CONTEXT_BYTES
    assert room((rank, engine)) == 85 * GIB - 2 * CONTEXT_BYTES
    assert room((rank, rank)) == (95 * GIB - 2 * CONTEXT_BYTES) // 2
    assert room((rank,), (rank, engine), (engine,)) == room((rank, engine))
    assert rank_room([Place(name=HOST, tenants=(rank,))], engines, 100 * GIB) == 0


def test_a_part_of_the_layers_takes_memory_and_seconds_between_none_and_all() -> None:
    settings = ("false", "7", "14", "true")
    plans = [planned(f"learner.gradient_checkpointing={word}") for word in settings]
    none, some = plans[:2]
    assert [plan.checkpointed for plan in plans] == [0, 7, 14, 28]
    assert none.backward == {0: none.backward[0], 28: none.backward[28]}
    assert some.backward == {**none.backward, 7: some.backward[7]}
    assert none.backward[28] < some.backward[7] < none.backward[0]
    seconds = [plan.time.training[0].seconds for plan in plans if plan.time]
    # From setting to setting another 7, 7 and 14 layers go forward a second time, and with the
    # first ones the logits do.
    quarter = seconds[2] - seconds[1]
    assert seconds[3] - seconds[2] == pytest.approx(2 * quarter)
    assert seconds[1] - seconds[0] > 1.1 * quarter
    with pytest.raises(ConfigError, match="29 is more than the 28 layers"):
        planned("learner.gradient_checkpointing=29")


def test_auto_takes_the_fewest_layers_that_leave_a_margin() -> None:
    auto = ("learner.gradient_checkpointing=auto", "learner.micro_batch_rows=3")
    plan = planned(*auto)
    assert 0 < plan.checkpointed < 28
    (card,) = (place for place in plan.places if place.place.tenants[0].role == "learner rank")
    assert card.needed <= 0.95 * CARDS["h100"].memory
    fewer = planned(*auto, f"learner.gradient_checkpointing={plan.checkpointed - 1}").places[0]
    assert fewer.needed > 0.95 * CARDS["h100"].memory
    assert planned(*auto, card="h200").checkpointed == 0
    assert planned(*auto, "learner.micro_batch_rows=1").checkpointed == 0
    # An engine on the same card leaves less.
    shared = ("learner.gpus_per_rank=0.5", "generation.gpus_per_engine=0.5")
    assert planned(*auto, *shared).checkpointed > plan.checkpointed


def test_auto_counts_the_slopes_that_only_a_run_without_checkpoints_keeps() -> None:
    """Many predicted tokens and a large vocabulary: the slopes alone decide."""
    needed = needs(QWEN2_1_5B, rows=one_row(30_720), predicted=30_000, compiled=True)
    sizes = [
        total(reserved_parts(learner_memory(replace(needed, checkpointed=layers))))
        for layers in (0, 1)
    ]
    assert sizes[0] - sizes[1] > 2 * 30_000 * 151_936 * 0.7
    assert fewest_layers(needed, sizes[0]) == 0
    assert fewest_layers(needed, sizes[0] - 1) == 1
    # Where the entropy is trained nothing is kept, and less room is enough for no checkpoint.
    assert fewest_layers(replace(needed, entropy_trained=True), sizes[0] - 1) == 0


def test_auto_counts_rows_that_several_short_episodes_fill() -> None:
    auto = ("learner.gradient_checkpointing=auto", "learner.micro_batch_rows=3")
    short, long = planned(*auto), planned(*auto, "learner.row_tokens=12288")
    assert long.rows == short.rows  # a row has room for one of the longest episodes
    assert long.checkpointed > short.checkpointed


def test_auto_where_nothing_is_planned() -> None:
    auto = "learner.gradient_checkpointing=auto"
    assert planned(auto, "learner.gpus_per_rank=0").checkpointed == 0
    words = ("learner.gpus_per_rank=1", "environment.type=economics", "algorithm.method=turn_grpo")
    dialogue = load_config(None, [*words, auto], RunConfig)
    unlimited = Shapes(policy=replace(QWEN2_1_5B, positions=None))
    assert plan_run(dialogue, unlimited, CARDS["h200"]).checkpointed == 28
    # The length of the model bounds dialogues, whose texts are unknown.
    bounded = load_config(None, [*words, auto, "model.max_length=2048"], RunConfig)
    assert plan_run(bounded, unlimited, CARDS["h200"]).checkpointed < 28
