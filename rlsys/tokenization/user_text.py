"""Text of users in prompts: it must not become a control token.

A problem may hold the text of a control token, such as `<|im_end|>` or `</think>`. Encoded as it
stands, it would end the user turn, so that the rest of the problem could take the part of another
role. Such a text is cut after its first character before it is put into the prompt, and the pieces
are encoded separately: the model reads the same characters as ordinary tokens. All other texts are
encoded as they are, so their ids do not change.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from rlsys.tokenization.tokenizer import encode

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_CUT: Final = "\ufdd0\ufdd1"
"""Marks a cut inside a rendered prompt. Unicode reserves these two code points for internal use, so
no text of a problem holds them, and no chat template changes them."""

_THOUGHT_TAG: Final = re.compile(r"</?think\w*>")


class UserText:
    """Marks texts of control tokens, and encodes rendered prompts with such marks."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Collect the texts of the tokenizer's control tokens."""
        self._tokenizer = tokenizer
        texts = sorted(control_texts(tokenizer))
        # A lookahead finds every place where a text begins, also inside another one. Some
        # tokenizers have thousands of such texts, so the first character is looked at alone before.
        first = "".join({re.escape(text[0]) for text in texts})
        whole = "|".join(map(re.escape, texts))
        self._begins = re.compile(f"(?=[{first}])(?={whole})") if texts else None

    def marked(self, text: str) -> str:
        """Return `text` with a mark after the first character of every control token's text."""
        if self._begins is None:
            return text
        places = [match.start() + 1 for match in self._begins.finditer(text)]
        starts = [0, *places]
        return _CUT.join(text[a:b] for a, b in zip(starts, [*places, len(text)], strict=True))

    def encode(self, rendered: str) -> list[int]:
        """Return the ids of a rendered prompt, without its marks and without special tokens."""
        pieces = rendered.split(_CUT)
        return [token for piece in pieces for token in encode(self._tokenizer, piece)]


def control_texts(tokenizer: PreTrainedTokenizerBase) -> set[str]:
    """Return the texts of the tokens that structure a prompt.

    These are special tokens, tags of thoughts, and added tokens that the chat template writes
    (`<tool_call>` of Qwen3). Other added tokens are ordinary text, such as runs of spaces or HTML
    tags. A text of one character cannot be cut and is left as it is.
    """
    template = str(tokenizer.chat_template or "")
    return {
        token.content
        for token in tokenizer.added_tokens_decoder.values()
        if len(token.content) > 1
        and not token.content.isspace()
        and (
            token.special
            or _THOUGHT_TAG.fullmatch(token.content)
            or (token.content.startswith("<") and token.content in template)
        )
    }
