"""Chat completions on the wire: read a request, and write a response or an error.

The policy is trained on what it samples, and it samples as the run is configured. A request that
asks for something else is therefore refused with one sentence, never answered differently.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from rlsys.tokenization.chat import Message

MODEL: Final = "policy"
"""The only model that the endpoint serves."""

_ROLES: Final = ("system", "developer", "user", "assistant", "tool")
_IGNORED: Final = ("user", "metadata", "store", "parallel_tool_calls")
"""Options that have no influence on what is sampled."""
_NEUTRAL: Final[Mapping[str, tuple[object, ...]]] = {
    "n": (1,),
    "top_p": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logprobs": (False,),
    "logit_bias": ({},),
    "stop": ([],),
    "response_format": ({"type": "text"},),
    "tool_choice": ("auto", "none"),
}
"""Options whose other values are refused; these are what a run does anyway."""
_READ: Final = (
    *("model", "messages", "tools", "temperature", "max_tokens", "max_completion_tokens"),
    *("stream", "stream_options"),
)


class Refusal(Exception):
    """A request that gets an error in place of a completion."""

    def __init__(self, sentence: str, *, status: int = 400, code: str | None = None) -> None:
        """`code` names the reason for programs, as in the API of OpenAI."""
        super().__init__(sentence)
        self.status = status
        self.code = code

    def body(self) -> dict[str, object]:
        """Return the JSON object of the error."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": str(self), "type": kind, "param": None, "code": self.code}}


class ChatRequest(NamedTuple):
    """A request for one reply."""

    messages: tuple[Message, ...]
    """The last one is not of the assistant."""
    tools: tuple[Message, ...]
    """Empty without tools, or where the request forbids their use."""
    temperature: float | None
    max_tokens: int | None
    stream: bool = False
    """Send the reply as events. There is one event with the whole message: replies leave the engine
    when they are complete."""
    stream_usage: bool = False


class ToolCall(NamedTuple):
    """A call of a tool, as the policy wrote it."""

    id: str
    name: str
    arguments: str
    """A JSON object."""

    def as_json(self) -> dict[str, object]:
        """Return the form of the API."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


class ChatReply(NamedTuple):
    """One reply of the policy and its numbers."""

    content: str | None
    thought: str
    """The text before the end of the thought; empty for a policy without thoughts."""
    calls: tuple[ToolCall, ...]
    stopped: bool
    """False if a limit ended the reply."""
    prompt_tokens: int
    reply_tokens: int

    def message(self) -> dict[str, object]:
        """Return the assistant message."""
        message: dict[str, object] = {"role": "assistant", "content": self.content}
        if self.thought:
            message["reasoning_content"] = self.thought
        if self.calls:
            message["tool_calls"] = [call.as_json() for call in self.calls]
        return message

    @property
    def finish_reason(self) -> str:
        """Why the reply ended."""
        return "length" if not self.stopped else "tool_calls" if self.calls else "stop"

    @property
    def usage(self) -> dict[str, int]:
        """The exact token counts."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.reply_tokens,
            "total_tokens": self.prompt_tokens + self.reply_tokens,
        }

    def body(self, number: int) -> dict[str, object]:
        """Return the JSON object of the response to call `number` of a session."""
        choice = {
            "index": 0,
            "message": self.message(),
            "logprobs": None,
            "finish_reason": self.finish_reason,
        }
        return _head(number, "chat.completion") | {"choices": [choice], "usage": self.usage}

    def events(self, number: int, *, usage: bool) -> list[dict[str, object]]:
        """Return the JSON objects of a streamed response, with the whole message in the first."""
        delta = self.message()
        if self.calls:
            calls = [{"index": i, **call.as_json()} for i, call in enumerate(self.calls)]
            delta["tool_calls"] = calls
        events: list[dict[str, object]] = [
            {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
            {"choices": [{"index": 0, "delta": {}, "finish_reason": self.finish_reason}]},
        ]
        if usage:
            events.append({"choices": [], "usage": self.usage})
        return [_head(number, "chat.completion.chunk") | event for event in events]


def _head(number: int, kind: str) -> dict[str, object]:
    return {"id": f"chatcmpl-{number}", "object": kind, "created": 0, "model": MODEL}


def read_request(body: bytes) -> ChatRequest:
    """Parse the body of a request. Raises Refusal."""
    try:
        fields = json.loads(body)
        if not isinstance(fields, dict):
            raise ValueError("it is no object")
        json.dumps(fields, ensure_ascii=False).encode()  # half of a surrogate pair has no bytes
    except (ValueError, RecursionError) as error:
        raise Refusal(f"the body is not a JSON object in UTF-8 ({_first_line(error)})") from None
    _check_options(fields)
    tools = fields.get("tools") or []
    if not isinstance(tools, list) or not all(map(_is_tool, tools)):
        raise Refusal("every element of tools must be a function with a name")
    return ChatRequest(
        messages=_messages(fields.get("messages")),
        tools=() if fields.get("tool_choice") == "none" else tuple(tools),
        temperature=_number(fields, "temperature"),
        max_tokens=_tokens(fields),
        stream=fields.get("stream") is True,
        stream_usage=_wants_usage(fields.get("stream_options")),
    )


def _check_options(fields: Mapping[str, Any]) -> None:
    for name, value in fields.items():
        if value is None or name in _READ or name in _IGNORED:
            continue
        if name not in _NEUTRAL:
            raise Refusal(f"option {name!r} is not supported in training; leave it out")
        if value not in _NEUTRAL[name]:
            raise Refusal(
                f"{name} {json.dumps(value)[:80]} is not supported in training; leave it out"
            )
    if fields.get("model") != MODEL:
        raise Refusal(
            f"model {fields.get('model')!r} is not served here; the policy is named {MODEL!r}",
            status=404,
            code="model_not_found",
        )


def _messages(value: object) -> tuple[Message, ...]:
    if not isinstance(value, list) or not value:
        raise Refusal("messages must be a list of at least one message")
    messages = tuple(_message(index, message) for index, message in enumerate(value))
    if messages[-1]["role"] == "assistant":
        raise Refusal("the last message is of the assistant; end with a user or tool message")
    # Some chat templates need the name of the tool, which clients send with the call alone.
    calls = [call for message in messages for call in message.get("tool_calls", ())]
    names = {call["id"]: call["function"]["name"] for call in calls}
    return tuple(
        {"name": names[message["tool_call_id"]], **message}
        if message["role"] == "tool" and message.get("tool_call_id") in names
        else message
        for message in messages
    )


def _message(index: int, value: object) -> Message:
    """Return a message with its content as one text, and arguments of tool calls as objects."""
    if not isinstance(value, dict) or value.get("role") not in _ROLES:
        raise Refusal(f"message {index} needs a role, one of {', '.join(_ROLES)}")
    message: dict[str, Any] = {"role": value["role"], "content": _text(index, value.get("content"))}
    for name in ("name", "tool_call_id", "reasoning_content"):
        if isinstance(value.get(name), str):
            message[name] = value[name]
    if calls := value.get("tool_calls"):
        if not isinstance(calls, list):
            raise Refusal(f"tool_calls of message {index} must be a list")
        message["tool_calls"] = [_call(index, call) for call in calls]
    return message


def _text(index: int, content: object) -> str:
    """Return the text of a content: a string, a list of text parts, or nothing."""
    if content is None or isinstance(content, str):
        return content or ""
    parts = content if isinstance(content, list) else [content]
    texts = [part.get("text") if isinstance(part, dict) else None for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise Refusal(f"the content of message {index} is not text; only text is supported")
    return "".join(str(text) for text in texts)


def _call(index: int, call: object) -> dict[str, object]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise Refusal(f"every tool call of message {index} needs a function with a name")
    assert isinstance(call, dict)
    arguments = function.get("arguments")
    # Chat templates write the arguments as JSON themselves; a text would be quoted once more.
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            raise Refusal(
                f"the arguments of a tool call of message {index} are no JSON object"
            ) from None
    written = {"name": function["name"], "arguments": arguments or {}}
    return {"id": str(call.get("id", "")), "type": "function", "function": written}


def _is_tool(tool: object) -> bool:
    function = tool.get("function") if isinstance(tool, dict) else None
    return isinstance(function, dict) and isinstance(function.get("name"), str)


def _number(fields: Mapping[str, Any], name: str) -> float | None:
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise Refusal(f"{name} must be a number")
    return float(value)


def _tokens(fields: Mapping[str, Any]) -> int | None:
    limits: Sequence[Any] = [fields.get("max_tokens"), fields.get("max_completion_tokens")]
    given = [limit for limit in limits if limit is not None]
    if not all(type(limit) is int and limit > 0 for limit in given):
        raise Refusal("max_tokens and max_completion_tokens must be whole numbers above 0")
    return min(given, default=None)


def _wants_usage(options: object) -> bool:
    return isinstance(options, dict) and options.get("include_usage") is True


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
