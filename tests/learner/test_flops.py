"""Arithmetic of a training step: against the planner's formulas, and against numbers by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from learner.flops import step_cost
from learner.lora import add_adapters
from rlsys.config import LoraConfig
from rlsys.planning.cards import CARDS, known_card
from rlsys.planning.shape import shape_of

SIZES = {
    "vocab_size": 50,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def model(kind: str, **settings: Any) -> PreTrainedModel:
    config = AutoConfig.for_model(kind, **SIZES | settings)
    with torch.device("meta"):
        loaded: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    return loaded


@pytest.mark.parametrize("tied", [True, False])
def test_a_step_is_three_forward_passes_of_the_planner(tied: bool) -> None:
    policy = model("qwen2", tie_word_embeddings=tied)
    cost, shape = step_cost(policy), shape_of(policy.config.to_dict())
    tokens, predicted, pairs = 100, 30, 900
    counted = cost.token * tokens + cost.predicted * predicted + cost.pair * pairs
    assert counted == 3 * shape.forward_flops(tokens, predicted, pairs)


def test_frozen_weights_need_no_gradient_of_their_own() -> None:
    whole = step_cost(model("qwen2"))
    adapted = model("qwen2")
    add_adapters(adapted, LoraConfig(rank=2, target_modules=("q_proj",)))
    cost = step_cost(adapted)
    adapters = 3 * 2 * (16 + 16)  # layers, rank, inputs and outputs of a projection
    assert cost.token == whole.token / 6 * 4 + 6 * adapters
    assert (cost.predicted, cost.pair) == (4 * 50 * 16, whole.pair)


def test_a_token_is_computed_by_its_own_experts_alone() -> None:
    experts = {"num_experts": 8, "moe_intermediate_size": 24, "decoder_sparse_step": 1}
    two = step_cost(model("qwen3_moe", **experts, num_experts_per_tok=2))
    one = step_cost(model("qwen3_moe", **experts, num_experts_per_tok=1))
    assert two.token - one.token == 6 * 3 * 3 * 16 * 24  # layers, projections of an expert
    assert two.pair == one.pair


def test_every_family_has_a_cost() -> None:
    """Another attention, or none, must not end a run for the sake of a metric."""
    for kind in ("gemma3_text", "gpt_oss", "gpt2"):
        cost = step_cost(model(kind))
        assert min(cost.token, cost.predicted, cost.pair) > 0, kind
    sizes = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 3}
    config = AutoConfig.for_model("mamba2", **sizes, num_heads=4, head_dim=8, n_groups=1)
    with torch.device("meta"):
        cost = step_cost(AutoModelForCausalLM.from_config(config))
    assert (cost.token > 0, cost.predicted, cost.pair) == (True, 6 * 50 * 16, 0)


def test_cards_are_known_by_their_names() -> None:
    names = [
        ("NVIDIA H100 80GB HBM3", 79.6, CARDS["h100"]),
        ("NVIDIA A100-SXM4-40GB", 39.4, CARDS["a100-40"]),
        ("NVIDIA A100-SXM4-80GB", 79.3, CARDS["a100"]),
        ("NVIDIA GeForce RTX 4090", 23.6, CARDS["rtx4090"]),
        ("Another card", 80.0, None),
    ]
    for name, memory_gib, card in names:
        assert known_card(name, memory_gib) == card, name
