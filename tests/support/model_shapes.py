"""Shapes of models for tests of plans: one that was measured, and one for numbers by hand."""

from __future__ import annotations

from dataclasses import replace

from rlsys.planning.memory import LearnerNeeds
from rlsys.planning.shape import ModelShape
from rlsys.planning.workload import LearnerRows

QWEN2_1_5B = ModelShape(
    layers=28,
    hidden=1536,
    intermediate=8960,
    heads=12,
    kv_heads=2,
    head_dim=128,
    vocabulary=151_936,
    tied=True,
    qkv_bias=True,
)
QWEN2_1_5B_SETTINGS = {
    "model_type": "qwen2",
    "vocab_size": 151_936,
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "num_hidden_layers": 28,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32_768,
    "tie_word_embeddings": True,
}
"""The same model as config.json has it."""
TOY = ModelShape(
    layers=2,
    hidden=64,
    intermediate=128,
    heads=4,
    kv_heads=2,
    head_dim=16,
    vocabulary=100,
    tied=False,
)


def one_row(tokens: int) -> LearnerRows:
    return LearnerRows(row_tokens=tokens, rows=1, passes=1, rows_per_pass=1, trees_per_row=1)


def needs(shape: ModelShape, **changes: object) -> LearnerNeeds:
    """A rank alone with one short row, in bfloat16."""
    base = LearnerNeeds(
        shape=shape,
        itemsize=2,
        trained=shape.parameters,
        zero_stage=1,
        ranks=1,
        rows=one_row(128),
        predicted=100,
        checkpointed=0,
        compiled=False,
        logits_chunk=64,
        reference=False,
        kept_for_sync=0,
    )
    return replace(base, **changes)  # type: ignore[arg-type]
