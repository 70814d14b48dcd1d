from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.tokenization_utils_tokenizers import TokenizersBackend

from rlsys.sft.tiny_model import tiny_tokenizer
from rlsys.tokenization.decoding import token_texts


@pytest.fixture(scope="module")
def bytes_tokenizer() -> TokenizersBackend:
    """One token per byte, as byte-level tokenizers spell rare characters."""
    vocabulary = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=core)


def test_every_token_of_the_tiny_reasoner_is_its_own_text() -> None:
    tokenizer = tiny_tokenizer()
    ids = tokenizer("3+8=<think>11;9</think>", add_special_tokens=False)["input_ids"]
    assert token_texts(tokenizer, [*ids, tokenizer.eos_token_id]) == (
        ["3", "+", "8", "=", "<think>", "1", "1", ";", "9", "</think>", "<eos>"]
    )


def test_a_character_appears_with_its_last_byte(bytes_tokenizer: TokenizersBackend) -> None:
    ids = bytes_tokenizer("é日a")["input_ids"]
    assert token_texts(bytes_tokenizer, ids) == ["", "é", "", "", "日", "a"]
    assert token_texts(bytes_tokenizer, ids[:4]) == ["", "é", "", ""]


@given(st.text(max_size=30))
def test_the_parts_join_to_the_text(bytes_tokenizer: TokenizersBackend, text: str) -> None:
    ids = bytes_tokenizer(text)["input_ids"]
    parts = token_texts(bytes_tokenizer, ids)
    assert len(parts) == len(ids)
    assert "".join(parts) == text


@given(st.lists(st.integers(0, 255), max_size=40))
def test_no_sequence_of_bytes_is_too_broken(
    bytes_tokenizer: TokenizersBackend, ids: list[int]
) -> None:
    parts = token_texts(bytes_tokenizer, ids)
    assert len(parts) == len(ids)
    # Only an unfinished end is missing, and the decoder shows that as replacement characters.
    assert (
        bytes_tokenizer.decode(ids).removeprefix("".join(parts)).strip("\N{REPLACEMENT CHARACTER}")
        == ""
    )
