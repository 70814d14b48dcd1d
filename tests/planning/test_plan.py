"""Plans of whole configurations: places, what does not fit, the nearest settings, the command."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from model_shapes import QWEN2_1_5B_SETTINGS
from typer.testing import CliRunner

from rlsys.cli.app import app
from rlsys.config import RunConfig
from rlsys.config.loading import load_config
from rlsys.errors import ConfigError, ModelError
from rlsys.planning.cards import CARDS, GIB, card_named, local_cards
from rlsys.planning.layout import layout
from rlsys.planning.plan import RunPlan, Shapes, plan_run, read_shapes
from rlsys.planning.remedies import nearest_fit
from rlsys.planning.shape import shape_of

SHAPES = Shapes(policy=shape_of(QWEN2_1_5B_SETTINGS))
ON_CARDS = ("learner.gpus_per_rank=1", "generation.gpus_per_engine=1", "model.dtype=bfloat16")
SHARED = (
    "learner.gpus_per_rank=0.5",
    "generation.gpus_per_engine=0.5",
    "model.dtype=bfloat16",
    "data.prompt.max_tokens=100",
    "environment.budgets=[2000,4000,6000,8000]",
)


def settings(*words: str) -> RunConfig:
    return load_config(None, words, RunConfig)


def planned(*words: str, card: str = "h100") -> RunPlan:
    return plan_run(settings(*words), SHAPES, CARDS[card])


def places(*words: str) -> dict[str, list[str]]:
    return {
        place.name: [f"{tenant.role} {tenant.index}" for tenant in place.tenants]
        for place in layout(settings(*words))
    }


def test_a_teacher_takes_memory_and_seconds_of_the_learner() -> None:
    teacher = shape_of({**QWEN2_1_5B_SETTINGS, "num_hidden_layers": 56})
    words = ("distillation.teacher.path=tiny", "distillation.teacher.dtype=bfloat16")
    taught = plan_run(
        settings(*ON_CARDS, *words), Shapes(policy=SHAPES.policy, teacher=teacher), CARDS["h100"]
    )
    plain = planned(*ON_CARDS)
    assert taught.learner.peak - plain.learner.peak == 2 * teacher.parameters
    assert taught.time is not None
    assert plain.time is not None
    assert taught.time.training[0].seconds > plain.time.training[0].seconds


def test_ranks_that_share_rows_share_activations_and_work() -> None:
    words = (*ON_CARDS, "learner.micro_batch_rows=1", "learner.row_tokens=65536")
    alone = planned(*words)
    shared = planned(*words, "learner.ranks=4", "learner.sequence_ranks=4")
    assert shared.rows.row_tokens == alone.rows.row_tokens
    parts = [{p.name: p.size for p in plan.learner.backward} for plan in (alone, shared)]
    assert parts[1]["activations"] == parts[0]["activations"] // 4
    assert alone.time is not None
    assert shared.time is not None
    computed, exchanged = (plan.time.training[0].card_s for plan in (alone, shared) if plan.time)
    assert computed / 4 < exchanged < computed / 3  # the exchange costs something
    auto = (*words, "learner.gradient_checkpointing=auto", "learner.ranks=4")
    assert planned(*auto, "learner.sequence_ranks=4").checkpointed < planned(*auto).checkpointed


def test_heads_that_ranks_cannot_divide_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN2_1_5B_SETTINGS))
    words = (f"model.path={tmp_path}", "learner.ranks=5", "learner.sequence_ranks=5")
    with pytest.raises(ModelError, match=r"sequence_ranks 5 does not divide the 12 attention"):
        read_shapes(settings(*words))


def test_places() -> None:
    assert places() == {"host": ["learner rank 0", "engine 0"]}
    assert places(*ON_CARDS, "learner.ranks=2") == {
        "card 0": ["learner rank 0"],
        "card 1": ["learner rank 1"],
        "card 2": ["engine 0"],
    }
    shared = places(*SHARED, "learner.ranks=2", "generation.engines=2")
    assert shared == {
        "card 0": ["learner rank 0", "engine 0"],
        "card 1": ["learner rank 1", "engine 1"],
    }
    parallel = ("generation.gpus_per_engine=2", "generation.tensor_parallel=2")
    assert places("learner.gpus_per_rank=1", *parallel) == {
        "card 0": ["learner rank 0"],
        "card 1": ["engine 0"],
        "card 2": ["engine 0"],
    }
    halves = ("generation.gpus_per_engine=0.5", "generation.engines=3")
    assert places("learner.gpus_per_rank=1", *halves) == {
        "card 0": ["learner rank 0"],
        "card 1": ["engine 0", "engine 1"],
        "card 2": ["engine 2"],
    }
    mixed = places("learner.gpus_per_rank=1")
    assert mixed == {"card 0": ["learner rank 0"], "host": ["engine 0"]}


def test_a_reflection_engine_shares_the_card_of_an_engine() -> None:
    words = (
        "environment.type=reflection",
        "algorithm.method=rea",
        "environment.revision.model.path=tiny",
        "environment.revision.generation.gpus_per_engine=0.2",
        "learner.gpus_per_rank=0.4",
        "generation.gpus_per_engine=0.4",
    )
    assert places(*words) == {"card 0": ["learner rank 0", "engine 0", "reflection engine 0"]}
    shapes = Shapes(policy=SHAPES.policy, reflection=SHAPES.policy)
    plan = plan_run(settings(*words, "model.dtype=bfloat16"), shapes, CARDS["h200"])
    assert plan.reflection is not None
    # A thought of 8,192 tokens, its answer and a revision of it, which may cut anywhere.
    assert plan.longest.answers == 2


def test_what_does_not_fit_is_named() -> None:
    (fault,) = planned(*SHARED).faults
    assert "card 0 with 1 learner rank and 1 engine needs" in fault
    assert "and has 79.6 GiB" in fault
    two = planned(*SHARED, "learner.ranks=2", "generation.engines=2").faults
    assert [fault.partition(" with")[0] for fault in two] == ["card 0 to card 1, each,"]
    cache = planned(*ON_CARDS, "generation.kv_cache_mib=64", "learner.lora.rank=8")
    assert "room for 2,340 tokens" in planned(*SHARED, "generation.kv_cache_mib=64").faults[0]
    assert cache.engine.cache_tokens == 2340
    long = planned(*SHARED, "model.max_length=4096")
    assert "after its prompt, and the model takes 4,096 in all" in long.faults[0]


def test_free_blocks_are_shown_and_refuse_no_run() -> None:
    words = (*SHARED, "learner.gradient_checkpointing=true", "generation.kv_cache_mib=16384")
    (place,) = planned(*words, "learner.micro_batch_rows=8", card="h100").places
    assert place.capacity is not None
    assert place.needed < place.capacity < place.size
    assert place.fits
    (host,) = planned().places  # on a CPU there is no such allocator
    assert host.size == host.needed


def test_the_nearest_settings_fit() -> None:
    cases: list[tuple[Sequence[str], str]] = [
        (SHARED, "h100"),
        ((*SHARED, "generation.kv_cache_mib=64"), "h200"),
        ((*ON_CARDS, "learner.ranks=4", "environment.budgets=[4000]"), "a100-40"),
        ((*ON_CARDS, "generation.gpu_memory_utilization=0.04"), "h100"),
    ]
    for words, card in cases:
        assert not planned(*words, card=card).fits, words
        changes = nearest_fit(settings(*words), SHAPES, CARDS[card])
        assert changes is not None, words
        assert planned(*words, *changes, card=card).fits, changes
    assert nearest_fit(settings(*SHARED), SHAPES, card_named("6")) is None


def test_a_cheap_change_comes_before_a_dear_one() -> None:
    words = (*ON_CARDS, "data.prompt.max_tokens=64", "learner.micro_batch_rows=16")
    assert nearest_fit(settings(*words), SHAPES, CARDS["h100"]) == ["learner.micro_batch_rows=8"]


def test_cards_by_name_and_size(monkeypatch: pytest.MonkeyPatch) -> None:
    assert card_named("H200") is CARDS["h200"]
    assert card_named("48").memory == 48 * GIB
    for bad in ("h1000", "-1", "nan"):
        with pytest.raises(ConfigError, match="neither a known card nor a number"):
            card_named(bad)
    listed = "NVIDIA H100 80GB HBM3, 81559\nNVIDIA A100-SXM4-40GB, 40960\nNVIDIA X9, 1024\n"
    monkeypatch.setattr("rlsys.planning.cards.shutil.which", lambda _: "nvidia-smi")
    monkeypatch.setattr(
        "rlsys.planning.cards.subprocess.run",
        lambda *_, **__: CompletedProcess([], 0, stdout=listed),
    )
    found = local_cards()
    assert [card.name for card in found] == ["h100", "a100-40", "NVIDIA X9"]
    assert [round(card.memory_gib, 1) for card in found] == [79.6, 40.0, 1.0]


def test_the_command(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN2_1_5B_SETTINGS))
    config = tmp_path / "run.yaml"
    config.write_text(f"model: {{path: {tmp_path}}}\n")

    def command(*words: str) -> tuple[int, str, str]:
        result = CliRunner().invoke(app, ["plan", str(config), *words])
        return result.exit_code, result.stdout, result.stderr

    code, shown, _ = command(*SHARED, "--card", "h200", "learner.gradient_checkpointing=true")
    assert code == 0
    for words in ("card 0 (h200)", "Adam's moments", "KV cache", "synchronous", "bound by"):
        assert words in shown
    code, _, refused = command(*SHARED, "--card", "h100")
    assert code == 2
    assert "it fits with learner." in refused
    code, shown, _ = command("model.path=tiny")
    assert (code, "host" in shown) == (0, True)
    code, _, refused = command(*SHARED)
    assert (code, "name the card" in refused) == (2, True)
    assert command(*SHARED, "--card", "6")[2].endswith("or shorter episodes\n")
