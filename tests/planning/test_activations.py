"""Bytes that autograd saves, counted in transformers' own layers without memory for them."""

from __future__ import annotations

from itertools import product
from typing import Any

import torch
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM

from learner.gradient_checkpointing import checkpoint_layers
from rlsys.planning.activations import layer_bytes
from rlsys.planning.shape import shape_of

TOKENS = 256
SIZES = {
    "vocab_size": 512,
    "hidden_size": 192,
    "intermediate_size": 320,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
}


class FlexLike(torch.autograd.Function):  # type: ignore[misc]
    """Saves what FlexAttention saves: query, key, value, output, statistics per head and token."""

    @staticmethod
    def forward(ctx, query, key, value):  # type: ignore[no-untyped-def]
        output = torch.empty_like(query)
        statistics = torch.empty(query.shape[:3], dtype=torch.float32, device=query.device)
        ctx.save_for_backward(query, key, value, output, statistics)
        return output

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        query, key, value, *_ = ctx.saved_tensors
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def flex_like(module, query, key, value, attention_mask, **_):  # type: ignore[no-untyped-def]
    """learner.attention.tree_attention without the kernel, which needs a GPU."""
    return FlexLike.apply(query, key, value).transpose(1, 2).contiguous(), None


def saved_bytes(model: Any, tokens: int) -> int:
    """Bytes of the tensors that a forward pass of the layers saves, parameters left out."""
    parameters = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    sizes: dict[int, int] = {}
    kept = []  # so that no storage ends and gives its address to another one

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept.append(tensor)
        sizes[storage._cdata] = storage.nbytes()
        return tensor

    ids = torch.zeros(1, tokens, dtype=torch.int64, device="meta")
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model.base_model(input_ids=ids, use_cache=False)
    return sum(size for address, size in sizes.items() if address not in parameters)


def test_layers_save_what_the_plan_says() -> None:
    """Of two layers the first `checkpointed` keep their inputs only."""
    AttentionInterface.register("flex_like", flex_like)
    for kind, heads, dtype, checkpointed in product(
        ("llama", "qwen2", "qwen3"), (2, 4, 6), (torch.bfloat16, torch.float32), (0, 1)
    ):
        config = AutoConfig.for_model(kind, **SIZES, num_attention_heads=heads)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, attn_implementation="flex_like")
        checkpoint_layers(model, checkpointed)
        saved = saved_bytes(model.to(dtype).train(), TOKENS)
        shape, size = shape_of(config.to_dict()), dtype.itemsize
        rotary, last_norm = 2 * size * shape.head_dim, (4 + size) * shape.hidden + 4
        ids = 8
        kept = (shape.layers - checkpointed) * layer_bytes(shape, size)
        inputs = checkpointed * size * shape.hidden
        planned = kept + inputs + rotary + last_norm + ids
        assert saved == TOKENS * planned, (kind, heads, dtype, checkpointed)
