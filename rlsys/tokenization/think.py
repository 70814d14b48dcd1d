"""The token ids that end a thought, and the token ids that are forced after it.

Forced texts are encoded separately and appended as ids, so that their first characters never merge
with the last characters before them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rlsys.config import ThoughtSection
from rlsys.errors import ModelError
from rlsys.tokenization.tokenizer import encode, eos_ids
from rlsys.types import Tokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkTokens:
    """The token ids that end, close and follow a thought, for the texts of a ThoughtSection."""

    think_end_id: int
    eos_ids: tuple[int, ...]
    """All tokens that end a turn: EOS of the tokenizer, and those of the generation settings."""
    closing_ids: Tokens
    """Forced before think_end_id if a thought is cut; may be empty."""
    header_ids: Tokens
    """Forced after think_end_id, before every answer."""

    @classmethod
    def resolve(
        cls, tokenizer: PreTrainedTokenizerBase, environment: ThoughtSection
    ) -> ThinkTokens:
        """Encode the texts of `environment`.

        Raises ModelError if `think_end` is not a single known token, if there is no EOS, if a
        forced text has characters that the tokenizer does not know, or if the header is empty: an
        answer must not start right after a sampled token.
        """
        end = think_end_id(tokenizer, environment.think_end)
        ends = eos_ids(tokenizer)
        header = _forced_ids(tokenizer, "answer_header", environment.answer_header)
        if not len(header):
            raise ModelError(
                "environment.answer_header is empty, but every answer must follow a forced token; "
                "set it to a text, for instance '\\n'"
            )
        return cls(
            think_end_id=end,
            eos_ids=ends,
            closing_ids=_forced_ids(tokenizer, "closing", environment.closing),
            header_ids=header,
        )


def _forced_ids(tokenizer: PreTrainedTokenizerBase, key: str, text: str) -> Tokens:
    ids = encode(tokenizer, text)
    if tokenizer.unk_token_id is not None and tokenizer.unk_token_id in ids:
        raise ModelError(
            f"environment.{key} {text!r} has characters that tokenizer {tokenizer.name_or_path!r} "
            "does not know; choose another text"
        )
    return np.array(ids, dtype=np.int32)


def think_end_id(tokenizer: PreTrainedTokenizerBase, text: str) -> int:
    """Return the token id of `text`. Raises ModelError if it is not exactly one known token."""
    end = encode(tokenizer, text)
    if len(end) != 1 or end[0] == tokenizer.unk_token_id:
        raise ModelError(
            f"environment.think_end {text!r} is {len(end)} tokens of tokenizer "
            f"{tokenizer.name_or_path!r}, but must be one known token; set it to the "
            "end-of-thought token of the model, or add one to the model"
        )
    return end[0]
