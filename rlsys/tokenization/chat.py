"""Render the messages of a chat as token ids: a whole chat, or only what follows a sampled reply.

A reply that the policy sampled is never encoded again. `after_reply` therefore returns only the ids
that the chat template writes between this reply and the next one: the end of the turn, the new
messages, and the opening of the next turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from rlsys.errors import ModelError
from rlsys.tokenization.tokenizer import eos_ids
from rlsys.tokenization.user_text import UserText
from rlsys.types import Tokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Message = Mapping[str, Any]
"""A chat message in the form that chat templates read: role, content, tool_calls, ..."""

_REPLY: Final = "\ufdd2\ufdd3"
"""Stands for the reply in a rendered chat. Unicode reserves both code points for internal use."""
_OUTSIDE: Final = ("user", "tool")
"""Roles whose texts come from data or tools. Control tokens in them stay ordinary text."""
_PROBE: Final = (
    {"role": "user", "content": "question"},
    {"role": "assistant", "content": "reply"},
    {"role": "user", "content": "question"},
)


class ChatError(Exception):
    """The chat template cannot render these messages; the message says why."""


class ChatRenderer:
    """Renders chats through the chat template of one tokenizer."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Render a short chat, to find errors early.

        Raises ModelError if there is no chat template, or it cannot continue after a reply.
        """
        self._tokenizer = tokenizer
        self._user_text = UserText(tokenizer)
        self._eos = eos_ids(tokenizer)
        if not tokenizer.chat_template:
            raise ModelError(
                f"tokenizer {tokenizer.name_or_path!r} has no chat template, which the chat "
                "completions of agents need; choose a chat model"
            )
        try:
            self.after_reply(_PROBE, (), reply=1, last_token=-1)
        except ChatError as error:
            raise ModelError(
                f"the chat template of {tokenizer.name_or_path!r} cannot render a chat of two "
                f"questions ({error}); use another model"
            ) from None

    def whole(self, messages: Sequence[Message], tools: Sequence[Message]) -> Tokens:
        """Return the ids of a whole chat, up to where the next reply begins. Raises ChatError."""
        return np.array(self._user_text.encode(self._rendered(messages, tools)), np.int32)

    def after_reply(
        self, messages: Sequence[Message], tools: Sequence[Message], *, reply: int, last_token: int
    ) -> Tokens:
        """Return the ids between the reply `messages[reply]` and the next reply. Raises ChatError.

        `last_token` is the last sampled id of the reply. If it is the end of turn that the template
        writes, this token is not repeated.
        """
        # Without tool calls: the template would write their JSON after the content.
        stand_in = {"role": "assistant", "content": _REPLY}
        marked = [*messages[:reply], stand_in, *messages[reply + 1 :]]
        before, mark, rest = self._rendered(marked, tools).partition(_REPLY)
        if not mark or _REPLY in rest or not before:
            raise ChatError("it changes or repeats earlier replies")
        ids = self._user_text.encode(rest)
        if ids[:1] == [last_token] and last_token in self._eos:
            ids = ids[1:]
        return np.array(ids, np.int32)

    def _rendered(self, messages: Sequence[Message], tools: Sequence[Message]) -> str:
        marked = [
            {**message, "content": self._user_text.marked(message["content"])}
            if message["role"] in _OUTSIDE
            else dict(message)
            for message in messages
        ]
        try:
            text: str = self._tokenizer.apply_chat_template(
                marked,
                tools=[dict(tool) for tool in tools] or None,
                add_generation_prompt=True,
                tokenize=False,
            )
        except Exception as error:  # a template is a program: it can fail in every way
            reason = str(error).strip().partition("\n")[0]
            raise ChatError(f"{type(error).__name__}: {reason}") from error
        return text
