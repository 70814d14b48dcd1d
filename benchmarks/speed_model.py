"""A model of Qwen2-1.5B's shape with random weights, for measurements of speed.

    python benchmarks/speed_model.py FOLDER TOKENIZER_FOLDER

Speed depends on shapes and not on what a model knows, and random weights need no download. The
tokenizer's files are only copied, since engines want some.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM


def main() -> None:
    """Write the folder."""
    folder, tokenizer = map(Path, sys.argv[1:])
    config = Qwen2Config(
        vocab_size=151_936,
        hidden_size=1536,
        intermediate_size=8960,
        num_hidden_layers=28,
        num_attention_heads=12,
        num_key_value_heads=2,
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
        model = Qwen2ForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(tokenizer / name, folder / name)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters in {folder}")


if __name__ == "__main__":
    main()
