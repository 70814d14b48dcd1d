"""Models with random weights, for measurements of speed and memory.

    python benchmarks/speed_model.py FOLDER TOKENIZER_FOLDER [--shape 1.5b]

Speed depends on shapes and not on what a model knows, and random weights need no download. The
tokenizer's files are only copied, since engines want some.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Final

import torch
from transformers import AutoModelForCausalLM, Qwen2Config

SHAPES: Final = {
    "1.5b": {
        "vocab_size": 151_936,
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
    },
    "0.5b": {
        "vocab_size": 151_936,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
    },
    # For a run of the scripts on a CPU.
    "tiny": {
        "vocab_size": 4096,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
}
"""Sizes of Qwen2-1.5B, Qwen2-0.5B and a toy, as transformers names them."""


def main() -> None:
    """Write the folder."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("--shape", choices=list(SHAPES), default="1.5b")
    asked = parser.parse_args()
    config = Qwen2Config(
        **SHAPES[asked.shape],
        max_position_embeddings=32_768,
        tie_word_embeddings=True,
        rope_theta=1e6,
        dtype="bfloat16",
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
    )
    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
    model.save_pretrained(asked.folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(asked.tokenizer / name, asked.folder / name)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters in {asked.folder}")


if __name__ == "__main__":
    main()
