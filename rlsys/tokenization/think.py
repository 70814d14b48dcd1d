"""How a thought ends, and the token ids that are forced after it.

Forced texts are encoded separately and appended as ids, so that their first characters never merge
with the last characters before them.

The end of a thought is one of three things:

- one token, as in Qwen3 and R1 distillations. Only this token ends a thought.
- several tokens, as in Qwen2.5 and Llama 3. The text decides, because a model may write the same
  text with other tokens than the tokenizer does: `</` + `think` + `>`, but also `.</` + `think` +
  `>\\n`. The thought ends with the token that completes the text, and keeps its sampled ids.
- nothing (`think_end: null`). A thought ends with EOS or at its budget.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rlsys.config import ThoughtSection
from rlsys.errors import ModelError
from rlsys.tokenization.tokenizer import encode, eos_ids
from rlsys.types import Decode, Tokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True, kw_only=True)
class ThoughtEnd:
    """The text that ends a thought, and how it is found in sampled tokens."""

    text: str | None
    """None for a model that has no such text."""
    token_ids: Tokens
    """The ids that are forced to end a thought; none without a text."""
    decode: Decode
    """Token ids to text, special tokens included."""

    @classmethod
    def resolve(cls, tokenizer: PreTrainedTokenizerBase, text: str | None) -> ThoughtEnd:
        """Encode `text`. Raises ModelError if it is empty or the tokenizer cannot write it."""

        def decode(ids: Sequence[int]) -> str:
            # Without the clean-up of spaces: it would move characters between tokens.
            return str(
                tokenizer.decode(
                    list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
                )
            )

        if text == "":
            raise ModelError(
                "environment.think_end is empty; set it to null for a model without a text that "
                "ends its thoughts"
            )
        ids = [] if text is None else encode(tokenizer, text)
        if text is not None and (tokenizer.unk_token_id in ids or text not in decode(ids)):
            raise ModelError(
                f"environment.think_end {text!r} cannot be written with tokenizer "
                f"{tokenizer.name_or_path!r}, which makes {decode(ids)!r} of it; choose another "
                "text, or null for a model without one"
            )
        return cls(text=text, token_ids=np.array(ids, dtype=np.int32), decode=decode)

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """The token that ends a thought, if the end is a single token."""
        return (int(self.token_ids[0]),) if len(self.token_ids) == 1 else ()

    @property
    def stop_text(self) -> str | None:
        """The text that ends a thought, if it is several tokens."""
        return self.text if len(self.token_ids) > 1 else None

    def closing_tokens(self, thought: Tokens) -> int:
        """Return how many tokens at the end of a thought hold its end; 0 if it has none.

        The first of them may begin with text of the thought, and the last may end with text after
        the end: `.</`, `think`, `>\\n` are three tokens.
        """
        if self.stop_text is None:
            return int(len(thought) > 0 and int(thought[-1]) in self.stop_token_ids)
        # Sampling stops at the end, so it lies in the last tokens. A token adds at least one byte;
        # twice as many leave room for tokens that only begin a character.
        tail = thought[-2 * len(self.stop_text.encode()) :].tolist()
        start = self._last_start(tail)
        return 0 if start is None else len(tail) - start

    def count(self, token_ids: Sequence[int]) -> int:
        """Return how often a thought is ended in `token_ids`."""
        if self.stop_text is not None:
            return self.decode(token_ids).count(self.stop_text)
        return sum(token_ids.count(stop) for stop in self.stop_token_ids)

    def text_after(self, token_ids: Sequence[int], decode: Decode) -> str:
        """Return what `decode` makes of the tokens after the last end; "" if there is no end."""
        start = self._last_start(token_ids)
        if start is None:
            return ""
        if self.stop_text is None:
            return decode(token_ids[start + 1 :])
        # The token that completes the end may hold the first characters after it.
        return decode(token_ids[start:]).partition(self.stop_text)[2]

    def _last_start(self, token_ids: Sequence[int]) -> int | None:
        """Return the index of the token in which the last end begins; None if there is none."""
        count = len(token_ids)
        if self.stop_text is None:
            places = (i for i in range(count - 1, -1, -1) if token_ids[i] in self.stop_token_ids)
            return next(places, None)
        text = self.stop_text

        def holds(length: int) -> bool:
            return text in self.decode(token_ids[count - length :])

        # A longer tail has all the text of a shorter one, so the shortest that holds the end can be
        # found by bisection.
        length = bisect_left(range(count), True, key=holds)
        return count - length if holds(length) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkTokens:
    """The token ids that end, close and follow a thought, for the texts of a ThoughtSection."""

    end: ThoughtEnd
    eos_ids: tuple[int, ...]
    """All tokens that end a turn: EOS of the tokenizer, and those of the generation settings."""
    closing_ids: Tokens
    """Forced before the end if a thought is cut; may be empty."""
    header_ids: Tokens
    """Forced after the end, before every answer."""

    @classmethod
    def resolve(
        cls, tokenizer: PreTrainedTokenizerBase, environment: ThoughtSection
    ) -> ThinkTokens:
        """Encode the texts of `environment`.

        Raises ModelError if the tokenizer cannot write `think_end`, if there is no EOS, if a forced
        text has characters that the tokenizer does not know, or if the header is empty: an answer
        must not start right after a sampled token.
        """
        end = ThoughtEnd.resolve(tokenizer, environment.think_end)
        ends = eos_ids(tokenizer)
        header = _forced_ids(tokenizer, "answer_header", environment.answer_header)
        if not len(header):
            raise ModelError(
                "environment.answer_header is empty, but every answer must follow a forced token; "
                "set it to a text, for instance '\\n'"
            )
        return cls(
            end=end,
            eos_ids=ends,
            closing_ids=_forced_ids(tokenizer, "closing", environment.closing),
            header_ids=header,
        )

    def closes(self, thought: Tokens) -> bool:
        """True if the policy ended the thought itself; without a text for that, by EOS."""
        if self.end.text is None:
            return len(thought) > 0 and int(thought[-1]) in self.eos_ids
        return self.end.closing_tokens(thought) > 0

    @property
    def cut_ids(self) -> Tokens:
        """All ids that are forced where a thought is cut: closing, end and header."""
        return np.concatenate([self.closing_ids, self.end.token_ids, self.header_ids])


def _forced_ids(tokenizer: PreTrainedTokenizerBase, key: str, text: str) -> Tokens:
    ids = encode(tokenizer, text)
    if tokenizer.unk_token_id is not None and tokenizer.unk_token_id in ids:
        raise ModelError(
            f"environment.{key} {text!r} has characters that tokenizer {tokenizer.name_or_path!r} "
            "does not know; choose another text"
        )
    return np.array(ids, dtype=np.int32)
