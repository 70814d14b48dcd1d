"""From token ids to what each token adds to the text: a place in the text is a number of tokens."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def token_texts(tokenizer: PreTrainedTokenizerBase, token_ids: Iterable[int]) -> list[str]:
    """Return what each token adds to the decoded text, one string per token, special tokens shown.

    A token that only begins a character adds "", and the token that completes it the character, so
    a cut between any two tokens never shows half of one. Bytes at the very end that complete no
    character add nothing.
    """
    from tokenizers.decoders import DecodeStream

    backend = tokenizer.backend_tokenizer
    stream = DecodeStream(skip_special_tokens=False)
    return [stream.step(backend, int(token)) or "" for token in token_ids]
