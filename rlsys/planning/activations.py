"""Bytes per token that one layer keeps for its backward pass."""

from __future__ import annotations

from rlsys.planning.shape import ModelShape


def layer_bytes(shape: ModelShape, itemsize: int) -> int:
    """Bytes per token that autograd saves in one layer of transformers' Llama, Qwen2 or Qwen3.

    A norm saves its input in float32, the root of its variance, the normalised input and its
    output. Attention saves query, key, value, its output and a float32 number per head. The MLP
    saves gate, activated gate, up and their product.
    """
    norms = 2 * (norm_bytes(shape.hidden, itemsize) + itemsize * shape.hidden)
    normed_heads = (shape.heads + shape.kv_heads) * shape.qk_norm
    qk_norm = normed_heads * norm_bytes(shape.head_dim, itemsize)
    mlp = 4 * itemsize * shape.intermediate
    return norms + _attention_bytes(shape, itemsize) + qk_norm + mlp


def compiled_layer_bytes(shape: ModelShape, itemsize: int) -> int:
    """The same for a layer under torch.compile, which computes cheap steps again.

    It saves the inputs of matrix products (outputs of both norms, product of the MLP), and what the
    other steps follow from: input of the layer, sum after attention, gate and up. So it saves 8 GiB
    of 61 in benchmarks/results/learner_speed_H200.jsonl.
    """
    norms = 4 * itemsize * shape.hidden + 8
    normed_heads = (shape.heads + shape.kv_heads) * shape.qk_norm
    qk_norm = normed_heads * (itemsize * shape.head_dim + 4)
    mlp = 3 * itemsize * shape.intermediate
    return norms + _attention_bytes(shape, itemsize) + qk_norm + mlp


def _attention_bytes(shape: ModelShape, itemsize: int) -> int:
    """Bytes per token that FlexAttention saves: inputs, output, a float32 number per head."""
    return itemsize * 2 * (shape.query_size + shape.kv_size) + 4 * shape.heads


def norm_bytes(width: int, itemsize: int) -> int:
    """Bytes that an RMSNorm of `width` numbers saves, its output left out."""
    return (4 + itemsize) * width + 4
