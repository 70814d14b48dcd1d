"""Shapes of models whose memory and time were measured."""

from rlsys.planning.shape import ModelShape

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
