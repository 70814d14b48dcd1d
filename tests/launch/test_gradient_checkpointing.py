"""What a run makes of learner.gradient_checkpointing `auto`, without Ray."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from model_shapes import QWEN2_1_5B_SETTINGS

from rlsys.config import RunConfig, SftConfig
from rlsys.config.loading import load_config
from rlsys.launch import gradient_checkpointing
from rlsys.launch.placement import NodeState, Placement
from rlsys.planning.cards import CARDS, Card
from rlsys.planning.plan import plan_run, read_shapes

AUTO = "learner.gradient_checkpointing=auto"
PLACEMENT = Placement(
    ranks=[{"node": "a"}, {"node": "b"}],
    engines=[],
    reflection=[],
    services=[],
    nodes={},
    rank_bundles=[],
    engine_bundles=[],
)


@pytest.fixture
def decide(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[object, str]]:
    """A function from a configuration and the cards of nodes a and b to the choice and its line."""
    nodes = [NodeState(name, name, name, {}, {}, {}) for name in ("a", "b", "engines only")]
    monkeypatch.setattr(gradient_checkpointing, "registered_nodes", lambda: nodes)
    monkeypatch.setattr(gradient_checkpointing, "node_of", lambda options: options["node"])

    def decide(config: RunConfig | SftConfig, *cards: Sequence[Card]) -> tuple[object, str]:
        async def on_nodes(asked: Sequence[NodeState], *_: object) -> list[Sequence[Card]]:
            assert [node.id for node in asked] == ["a", "b"]
            return list(cards)

        monkeypatch.setattr(gradient_checkpointing, "on_nodes", on_nodes)
        lines: list[str] = []
        learner = asyncio.run(
            gradient_checkpointing.with_checkpointed_layers(config, PLACEMENT, lines.append)
        )
        assert learner.model_copy(update={"gradient_checkpointing": "auto"}) == config.learner
        return learner.gradient_checkpointing, "".join(lines)

    return decide


def test_the_smallest_card_decides_as_in_the_plan(
    decide: Callable[..., tuple[object, str]], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN2_1_5B_SETTINGS))
    words = (
        *(f"model.path={tmp_path}", "model.dtype=bfloat16", "learner.gpus_per_rank=1"),
        *("environment.budgets=[8000]", "learner.micro_batch_rows=3", AUTO),
    )
    config = load_config(None, words, RunConfig)
    planned = plan_run(config, read_shapes(config), CARDS["h100"]).checkpointed
    assert 0 < planned < 28
    chosen, line = decide(config, [CARDS["h200"]], [CARDS["h200"], CARDS["h100"]])
    assert chosen == planned
    assert f"auto: {planned} of 28 layers" in line
    assert "(h100, 79.6 GiB)" in line
    chosen, line = decide(config, [CARDS["h200"]], [])
    assert (chosen, "nvidia-smi lists no card" in line) == (True, True)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    chosen, line = decide(config, [CARDS["h200"]], [CARDS["h200"]])
    assert (chosen, "'gpt2' cannot be planned" in line) == (True, True)


def test_runs_without_a_plan(decide: Callable[..., tuple[object, str]]) -> None:
    chosen, line = decide(load_config(None, [AUTO], RunConfig))
    assert (chosen, "on the CPU" in line) == (False, True)
    sft = load_config(None, [AUTO, "learner.gpus_per_rank=1"], SftConfig)
    chosen, line = decide(sft)
    assert (chosen, "supervised rows" in line) == (True, True)


def test_other_values_stay_as_they_are() -> None:
    for value in ("true", "false", "12"):
        config = load_config(None, [f"learner.gradient_checkpointing={value}"], RunConfig)
        settings = gradient_checkpointing.with_checkpointed_layers(config, PLACEMENT, pytest.fail)
        assert asyncio.run(settings) is config.learner
