"""The tiny reasoner's tokenizer and fresh weights."""

from pathlib import Path

import pytest

import rlsys.assets
from rlsys.assets import shipped_path
from rlsys.errors import ModelError
from rlsys.sft.tiny_model import (
    SEARCHER,
    TINY_ENVIRONMENT,
    build_tiny,
    fresh_weights,
    tiny_config,
    tiny_tokenizer,
)


def test_text_survives_encoding_and_decoding() -> None:
    tokenizer = tiny_tokenizer()
    text = "\n\n**Final Answer**\n\\boxed{-12}<eos>"
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids) == [
        *("\n\n**Final Answer**\n", "\\boxed{", "-", "1", "2", "}", "<eos>")
    ]
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode(ids, skip_special_tokens=True) == text.removesuffix("<eos>")


def test_any_ascii_text_is_written_in_characters() -> None:
    tokenizer = tiny_tokenizer()
    text = 'Left: 40 tokens.\n{"q": "3+8=11; ~|^"}'
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert len(ids) == len(text)
    assert tokenizer.unk_token_id not in ids
    assert tokenizer.decode(ids) == text


def test_a_character_outside_ascii_is_unknown() -> None:
    tokenizer = tiny_tokenizer()
    assert tokenizer("é")["input_ids"] == [tokenizer.unk_token_id]


def test_end_of_thought_and_header_are_single_tokens_and_kept_by_decoding() -> None:
    tokenizer = tiny_tokenizer()
    header = tokenizer(TINY_ENVIRONMENT.answer_header, add_special_tokens=False)["input_ids"]
    assert len(header) == 2
    end = tokenizer(TINY_ENVIRONMENT.think_end, add_special_tokens=False)["input_ids"]
    assert len(end) == 1
    assert tokenizer.decode([*end, *header], skip_special_tokens=True) == (
        f"{TINY_ENVIRONMENT.think_end}{TINY_ENVIRONMENT.answer_header}"
    )


def test_chat_template_renders_question_and_examples() -> None:
    tokenizer = tiny_tokenizer()
    turns = [
        {"role": "system", "content": "Add."},
        {"role": "user", "content": "3+4"},
        {"role": "assistant", "content": "7"},
        {"role": "user", "content": "3+8-2"},
    ]
    render = tokenizer.apply_chat_template
    assert render(turns[3:], tokenize=False, add_generation_prompt=True) == "<bos>3+8-2=<think>"
    assert render(turns, tokenize=False, add_generation_prompt=True) == (
        "<bos>Add.\n3+4=7<eos>3+8-2=<think>"
    )


def test_built_model_loads_with_every_weight_in_its_place(tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    build_tiny(tmp_path / "tiny", seed=3)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "tiny")
    model, report = AutoModelForCausalLM.from_pretrained(
        tmp_path / "tiny", output_loading_info=True
    )
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert sum(p.numel() for p in model.parameters()) < 1_000_000
    assert model.config.vocab_size == len(tokenizer)
    assert model.config.head_dim == 32
    assert model.dtype == torch.float32
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    size = sum(f.stat().st_size for f in (tmp_path / "tiny").iterdir())
    assert size < 4 * 2**20


def test_a_larger_shape_of_the_same_model() -> None:
    tokenizer = tiny_tokenizer(SEARCHER.max_length)
    weights = fresh_weights(len(tokenizer), 0, SEARCHER)
    assert sum(matrix.size for matrix in weights.values()) == 10_196_800
    config = tiny_config(tokenizer, SEARCHER)
    assert (config.num_hidden_layers, config.head_dim) == (8, 64)
    assert config.max_position_embeddings == tokenizer.model_max_length == 2048


def test_the_seed_decides_the_weights(tmp_path: Path) -> None:
    weights = [
        (build_tiny(tmp_path / name, seed) / "model.safetensors").read_bytes()
        for name, seed in (("a", 0), ("b", 0), ("c", 1))
    ]
    assert weights[0] == weights[1] != weights[2]


def test_a_missing_checkpoint_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rlsys.assets, "__file__", str(tmp_path / "__init__.py"))
    with pytest.raises(ModelError, match=r"tiny/model\.safetensors, which is missing here"):
        shipped_path("tiny")
