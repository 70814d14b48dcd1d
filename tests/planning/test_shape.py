"""Parameters, cache bytes and FLOPs against transformers' own modules, without memory for them."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from model_shapes import QWEN2_1_5B_SETTINGS
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

from rlsys.config import LoraConfig
from rlsys.errors import ModelError
from rlsys.planning.shape import read_shape, shape_of

SIZES: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 192,
    "intermediate_size": 320,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
}


def on_meta(kind: str, **settings: Any) -> tuple[Any, dict[str, Any]]:
    config = AutoConfig.for_model(kind, **{**SIZES, **settings})
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config), config.to_dict()


def test_parameters_are_those_of_transformers() -> None:
    for kind, tied, bias in product(("llama", "qwen2", "qwen3"), (True, False), (True, False)):
        settings = {"tie_word_embeddings": tied}
        if kind != "qwen2":
            settings["attention_bias"] = bias
        if kind == "llama":
            settings["mlp_bias"] = bias
        model, written = on_meta(kind, **settings)
        real = sum(parameter.numel() for parameter in model.parameters())
        assert shape_of(written).parameters == real, (kind, tied, bias)


def test_sizes_of_published_models() -> None:
    small = shape_of(QWEN2_1_5B_SETTINGS)
    assert (small.parameters, small.head_dim) == (1_543_714_304, 128)
    # 2 x 28 layers x 2 heads x 128 numbers x 2 bytes
    assert small.kv_bytes(2) == 28_672
    qwen3_8b = shape_of(
        {
            "model_type": "qwen3",
            "vocab_size": 151_936,
            "hidden_size": 4096,
            "intermediate_size": 12_288,
            "num_hidden_layers": 36,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
        }
    )
    assert (qwen3_8b.parameters, qwen3_8b.head_dim) == (8_190_735_360, 128)
    llama_8b = shape_of(
        {
            "model_type": "llama",
            "vocab_size": 128_256,
            "hidden_size": 4096,
            "intermediate_size": 14_336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
        }
    )
    assert llama_8b.parameters == 8_030_261_248
    assert llama_8b.kv_bytes(2) == 131_072


def test_cache_bytes_are_those_of_a_cache() -> None:
    for kind in ("llama", "qwen2", "qwen3"):
        model, written = on_meta(kind)
        cache = DynamicCache()
        ids = torch.zeros(1, 10, dtype=torch.int64, device="meta")
        model.to(torch.bfloat16)(input_ids=ids, past_key_values=cache)
        held = sum(part.nbytes for layer in cache.layers for part in (layer.keys, layer.values))
        assert held == 10 * shape_of(written).kv_bytes(2), kind


def test_flops_are_those_that_torch_counts() -> None:
    tokens = 48
    for kind in ("llama", "qwen2", "qwen3"):
        config = AutoConfig.for_model(kind, **SIZES)
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
        ids = torch.zeros(1, tokens, dtype=torch.int64)
        with FlopCounterMode(display=False) as counter:
            model(input_ids=ids, use_cache=False)
        # Eager attention multiplies every pair; one inverse frequency times a position each is
        # counted by torch and is no work of the model.
        rotary = 2 * 16 * tokens
        planned = shape_of(config.to_dict()).forward_flops(tokens, tokens, pairs=tokens * tokens)
        assert counter.get_total_flops() - planned == rotary, kind


def test_adapters() -> None:
    shape = shape_of({"model_type": "llama", **SIZES})
    lora = LoraConfig(rank=4, target_modules=("q_proj", "down_proj"))
    # q: 192 + 6 x 32 numbers, down: 320 + 192 numbers, times rank 4 and 3 layers
    assert shape.lora_parameters(lora) == 3 * 4 * (384 + 512)


def test_models_that_cannot_be_planned(tmp_path: Path) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"model_type": "gpt2"}, "type 'gpt2' cannot be planned"),
        ({"model_type": "llama"}, "has no 'num_attention_heads'"),
        ({**QWEN2_1_5B_SETTINGS, "use_sliding_window": True}, "sliding windows"),
    ]
    for settings, words in cases:
        with pytest.raises(ModelError, match=words):
            shape_of(settings)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match="cannot read"):
        read_shape(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps(QWEN2_1_5B_SETTINGS))
    assert read_shape(str(tmp_path)).parameters == 1_543_714_304
    assert read_shape("tiny").parameters == 866_432
