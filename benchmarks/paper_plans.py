"""What the runs of configs/paper would need, as `rlsys plan` predicts it.

    python benchmarks/paper_plans.py       print the table of docs/paper.md

Only the sizes of the models are needed, so nothing is downloaded. The seconds follow from constants
that were fitted to measurements of a 1.5B model on one H200 (docs/planning.md).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

PAPER: Final = Path(__file__).parents[1] / "configs" / "paper"

QWEN2: Final = {"model_type": "qwen2", "vocab_size": 152_064, "tie_word_embeddings": False}
SETTINGS: Final[dict[str, dict[str, Any]]] = {
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": {
        **QWEN2,
        "vocab_size": 151_936,
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "max_position_embeddings": 131_072,
    },
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": {
        **QWEN2,
        "hidden_size": 3584,
        "intermediate_size": 18_944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "max_position_embeddings": 131_072,
    },
    "Qwen/Qwen2.5-7B-Instruct": {
        **QWEN2,
        "hidden_size": 3584,
        "intermediate_size": 18_944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "max_position_embeddings": 32_768,
    },
    "Qwen/Qwen2.5-32B-Instruct": {
        **QWEN2,
        "hidden_size": 5120,
        "intermediate_size": 27_648,
        "num_hidden_layers": 64,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "max_position_embeddings": 32_768,
    },
    "Qwen/Qwen2.5-0.5B-Instruct": {
        **QWEN2,
        "vocab_size": 151_936,
        "tie_word_embeddings": True,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32_768,
    },
    "Qwen/Qwen3-14B": {
        "model_type": "qwen3",
        "vocab_size": 151_936,
        "tie_word_embeddings": False,
        "hidden_size": 5120,
        "intermediate_size": 17_408,
        "num_hidden_layers": 40,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 40_960,
    },
}
"""The sizes in the config.json of every model that configs/paper trains or asks."""
