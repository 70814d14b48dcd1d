"""The session of one agent: its chat completions, its budget, and the exact tokens of both.

A request that goes on after a reply of the session continues the ids of that reply as they were
sampled. Only the new messages are rendered and encoded. Any other request (the agent rewrote the
history, or began a second chat) is rendered as a whole and becomes a branch of the token tree.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from rlsys.environments.agent.tool_calls import split_tool_calls
from rlsys.environments.agent.tree import Place, TokenTree
from rlsys.environments.agent.wire import ChatReply, ChatRequest, Refusal, ToolCall
from rlsys.environments.seeds import derive_seed
from rlsys.tokenization.chat import ChatError, ChatRenderer, Message
from rlsys.tokenization.think import ThoughtEnd
from rlsys.types import Completion, Decode, GenerationRequest, Generator, Kind, Tokens

_CLOSED: Final = "this session is over, because its episode has ended"
_UNREAD: Final = "the agent has closed the connection"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How the replies of all sessions are sampled and read."""

    generator: Generator
    renderer: ChatRenderer
    decode: Decode
    """Token ids to text, special tokens dropped."""
    thought_end: ThoughtEnd
    """Without a text for a policy without thoughts."""
    stop_ids: tuple[int, ...]
    temperature: float
    top_p: float
    """1 in training, see GenerationRequest."""
    reply_tokens: int
    """Most sampled tokens of a reply."""
    exact_history: bool
    """True to continue the sampled ids of earlier replies; False to render all messages anew."""
    budget: int
    """Most sampled tokens of a session."""
    max_length: int
    """Most tokens of the whole tree of a session."""


class _Chat(NamedTuple):
    """A chat up to a reply of the session."""

    messages: tuple[str, ...]
    """The messages and the reply, each as `_identity` writes it."""
    tools: str
    place: Place
    last_token: int


class _Prompt(NamedTuple):
    """Where a prompt belongs in the tree."""

    place: Place
    """The end of the known prefix."""
    new: Tokens
    """The ids after it."""
    kind: Kind
    ids: Tokens
    """All ids."""


class Session:
    """Serves the calls of one agent, one after the other, until it is closed."""

    def __init__(self, policy: Policy, seed: int) -> None:
        """`seed` is that of the episode; the seeds of all replies are derived from it."""
        self.tree = TokenTree()
        self.calls = 0
        self.branches = 0
        """Calls that did not go on after an earlier reply; the first call is one of them."""
        self.spent = 0
        """Sampled tokens."""
        self.failed = asyncio.Event()
        """Set if the policy itself fails, which no agent can repair."""
        self.error: Exception | None = None
        """Why it failed."""
        self._policy = policy
        self._seed = seed
        self._chats: list[_Chat] = []
        self._repeats: Counter[bytes] = Counter()
        self._tool_calls = 0
        self._engine: int | None = None
        self._closed = False
        self._started = time.monotonic()
        self._waiting = 0
        self._waits_since = 0.0
        self._waited_s = 0.0
        # A budget that parallel calls share could be spent twice without the lock.
        self._lock = asyncio.Lock()

    def close(self) -> None:
        """Refuse all further calls, and drop the replies that are not there yet."""
        self._closed = True

    def agent_s(self) -> float:
        """Return the seconds that the agent itself has used: those without a call to the policy."""
        now = self._waits_since if self._waiting else time.monotonic()
        return now - self._started - self._waited_s

    async def complete(
        self, request: ChatRequest, is_read: Callable[[], bool] = lambda: True
    ) -> ChatReply:
        """Return the next reply.

        `is_read` is False once the agent waits no more; the reply is then not part of the episode.

        Raises Refusal if the request cannot be served, or the budget is spent.
        """
        if not self._waiting:
            self._waits_since = time.monotonic()
        self._waiting += 1
        try:
            async with self._lock:
                return await self._complete(request, is_read)
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._waited_s += time.monotonic() - self._waits_since

    async def _complete(self, request: ChatRequest, is_read: Callable[[], bool]) -> ChatReply:
        policy = self._policy
        if request.temperature not in (None, policy.temperature):
            raise Refusal(
                f"temperature {request.temperature:g} is not that of the run, "
                f"{policy.temperature:g}; leave it out"
            )
        if not is_read():  # it gave up while other calls of the session were served
            raise Refusal(_UNREAD)
        before, prompt = self._prompt(request)
        room = self._room(prompt, request.max_tokens)
        completion = await self._sample(prompt.ids, room)
        self._refuse_if_closed()
        if not is_read():
            raise Refusal(_UNREAD)
        # Nothing of a call is kept unless the agent gets its reply.
        place = self.tree.add_text(prompt.place, prompt.new, prompt.kind)
        place = self.tree.add_reply(place, completion)
        self.calls += 1
        self.branches += before is None
        self.spent += len(completion.token_ids)
        self._engine = completion.engine
        reply = self._read(request, completion, len(prompt.ids))
        self._chats.append(
            _Chat(
                messages=(*map(_identity, request.messages), _identity(_as_message(reply))),
                tools=_tools(request),
                place=place,
                last_token=int(completion.token_ids[-1]),
            )
        )
        return reply

    def _prompt(self, request: ChatRequest) -> tuple[_Chat | None, _Prompt]:
        """Return the chat that a request continues, if there is one, and its prompt."""
        chat = self._continued(request)
        renderer = self._policy.renderer
        try:
            if chat is None:
                ids = renderer.whole(request.messages, request.tools)
                return None, _Prompt(*self.tree.locate(ids), Kind.PROMPT, ids)
            new = renderer.after_reply(
                request.messages,
                request.tools,
                reply=len(chat.messages) - 1,
                last_token=chat.last_token,
            )
        except ChatError as error:
            raise Refusal(f"the chat template cannot render these messages ({error})") from None
        ids = np.concatenate([self.tree.path(chat.place), new])
        # The longest known prefix ends with the reply, or later if the same messages came before.
        return chat, _Prompt(*self.tree.locate(ids), Kind.OBSERVATION, ids)

    def _continued(self, request: ChatRequest) -> _Chat | None:
        """Return the longest chat of the session that a request goes on from."""
        if not self._policy.exact_history:
            return None
        messages, tools = tuple(map(_identity, request.messages)), _tools(request)
        fitting = (
            chat
            for chat in reversed(self._chats)
            if chat.tools == tools and messages[: len(chat.messages)] == chat.messages
        )
        return max(fitting, key=lambda chat: len(chat.messages), default=None)

    def _room(self, prompt: _Prompt, wanted: int | None) -> int:
        """Return how many tokens the next reply may have. Raises Refusal if it may have none."""
        policy = self._policy
        self._refuse_if_closed()
        left = policy.budget - self.spent
        if left <= 0:
            raise Refusal(
                f"the budget of {policy.budget} sampled tokens of this episode is spent",
                code="budget_exhausted",
            )
        free = policy.max_length - self.tree.tokens - len(prompt.new)
        if free <= 0:
            raise Refusal(
                f"the {self.tree.tokens} tokens of this episode and {len(prompt.new)} of new "
                f"messages leave no room for a reply in {policy.max_length} tokens",
                code="context_length_exceeded",
            )
        return min(left, free, policy.reply_tokens, wanted or policy.reply_tokens)

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise Refusal(_CLOSED, status=401, code="session_over")

    async def _sample(self, ids: Tokens, room: int) -> Completion:
        # From the prompt and not from the number of the call: calls that an agent makes in parallel
        # arrive in any order.
        digest = hashlib.blake2b(ids.tobytes(), digest_size=8).digest()
        repeat = self._repeats[digest]
        self._repeats[digest] += 1
        request = GenerationRequest(
            token_ids=ids,
            n=1,
            max_tokens=room,
            stop_token_ids=self._policy.stop_ids,
            temperature=self._policy.temperature,
            top_p=self._policy.top_p,
            seed=derive_seed(self._seed, digest.hex(), repeat),
            engine=self._engine,
        )
        try:
            ((completion,),) = await self._policy.generator.generate([request])
        except Exception as error:
            self.error = error
            self.failed.set()
            raise Refusal("the policy failed; the run ends", status=500) from error
        return completion

    def _read(self, request: ChatRequest, completion: Completion, prompt_tokens: int) -> ChatReply:
        """Return what the agent sees of a reply."""
        policy, ids = self._policy, completion.token_ids.tolist()
        text, thought = policy.decode(ids), ""
        calls: tuple[ToolCall, ...] = ()
        if (end := policy.thought_end.text) is not None:
            # If the thought did not end, the whole reply is thought and nothing is visible.
            visible = policy.thought_end.text_after(ids, policy.decode)
            thought, text = text.removesuffix(visible).removesuffix(end), visible
        if request.tools:
            text, calls = split_tool_calls(text, self._tool_calls)
            self._tool_calls += len(calls)
        return ChatReply(
            content=None if calls and not text else text,
            thought=thought,
            calls=calls,
            stopped=completion.stopped,
            prompt_tokens=prompt_tokens,
            reply_tokens=len(ids),
        )


def _as_message(reply: ChatReply) -> Message:
    """Return a reply in the form in which requests are read."""
    calls = [
        {"id": c.id, "function": {"name": c.name, "arguments": json.loads(c.arguments)}}
        for c in reply.calls
    ]
    return {"role": "assistant", "content": reply.content or "", "tool_calls": calls}


def _identity(message: Message) -> str:
    """Return a text that is equal for messages that say the same.

    Thoughts are left out, because most clients do not send them back. So is white space around the
    text of a reply, which many clients strip.
    """
    content, assistant = message["content"], message["role"] == "assistant"
    calls = [
        [call["id"], call["function"]["name"], call["function"]["arguments"]]
        for call in message.get("tool_calls", ())
    ]
    others = [message.get("name"), message.get("tool_call_id")]
    said = [message["role"], content.strip() if assistant else content, calls, others]
    return json.dumps(said, sort_keys=True)


def _tools(request: ChatRequest) -> str:
    return json.dumps(request.tools, sort_keys=True)
