"""Decode token ids one by one, so that a position in the text is known as a number of tokens."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def token_texts(tokenizer: PreTrainedTokenizerBase, token_ids: Iterable[int]) -> list[str]:
    """Return the text that each token adds, one string per token, special tokens included.

    A token that only begins a character adds "", and the token that completes the character adds
    it. So text that is cut between two tokens never ends in half a character. Incomplete bytes at
    the end of the text add nothing.
    """
    from tokenizers.decoders import DecodeStream

    backend = tokenizer.backend_tokenizer
    stream = DecodeStream(skip_special_tokens=False)
    return [stream.step(backend, int(token)) or "" for token in token_ids]
