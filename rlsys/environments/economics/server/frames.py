"""A guard between a socket and OpenEnv, so that no message can end a session or fill the log.

OpenEnv closes a session after a message that its own JSON handling cannot process: a binary frame,
a JSON array, deep nesting, or half of a surrogate pair. Its sessions also never end by themselves.
The guard answers such messages with an error frame, passes all others on, and ends a session whose
client sends nothing or has gone.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

Message = MutableMapping[str, Any]
"""An ASGI message or scope."""
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

MAX_DEPTH: Final = 32
MAX_ERROR_CHARACTERS: Final = 500
JSON_RPC_CODES: Final = {
    "INVALID_JSON": -32700,
    "VALIDATION_ERROR": -32600,
    "SESSION_ERROR": -32000,
}
"""Codes of the guard as JSON-RPC 2.0 error codes, which `/mcp` uses."""


class Refusal(NamedTuple):
    """Why a message is not passed on to OpenEnv: an error code of OpenEnv, and a sentence."""

    code: str
    message: str


class FrameGuard:
    """ASGI middleware around the sockets `/ws` and `/mcp`; other requests pass unchanged."""

    def __init__(self, app: App, *, idle_timeout_s: float, max_frame_characters: int) -> None:
        """Guard `app`."""
        self._app = app
        self._idle_timeout_s = idle_timeout_s
        self._max_frame_characters = max_frame_characters

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "websocket" or scope["path"] not in _ERROR_FRAMES:
            await self._app(scope, receive, send)
            return
        error_frame = _ERROR_FRAMES[scope["path"]]

        async def guarded_receive() -> Message:
            # OpenEnv calls this only between two messages, so the timeout below measures how long
            # the client is silent, not how long a step takes.
            while True:
                try:
                    async with asyncio.timeout(self._idle_timeout_s):
                        message = await receive()
                except TimeoutError:
                    reason = f"nothing was sent for {self._idle_timeout_s:g} s; connect again"
                    await guarded_send(error_frame(Refusal("SESSION_ERROR", reason)))
                    # OpenEnv frees the session as it does when a client disconnects.
                    return {"type": "websocket.disconnect", "code": 1001}
                if message["type"] != "websocket.receive":
                    return message
                refusal = refuse(message.get("text"), self._max_frame_characters)
                if refusal is None:
                    return message
                # Answered here and not passed on, so the episode is unchanged.
                await guarded_send(error_frame(refusal))

        async def guarded_send(message: Message) -> None:
            text = message.get("text")
            if isinstance(text, str) and text.startswith('{"type":"error"'):
                message = {**message, "text": tidy_error(text)}
            # The client may have gone. OpenEnv would react to the OSError with further messages
            # and a long traceback; without it, its next receive reports the disconnect.
            with suppress(OSError):
                await send(message)

        await self._app(scope, guarded_receive, guarded_send)


def refuse(text: str | None, max_characters: int) -> Refusal | None:
    """Return why a frame must not reach OpenEnv, or None if it may. `text` is None if binary."""
    if text is None:
        return Refusal("INVALID_JSON", "the frame is binary; send JSON text")
    if len(text) > max_characters:
        length = f"{len(text)} characters, more than the {max_characters} that are accepted"
        return Refusal("VALIDATION_ERROR", f"the message has {length}; send a shorter one")
    try:
        message = json.loads(text)
    except (ValueError, RecursionError) as error:
        return Refusal("INVALID_JSON", f"Invalid JSON: {error}"[:MAX_ERROR_CHARACTERS])
    if not isinstance(message, dict):
        kind = type(message).__name__
        return Refusal("VALIDATION_ERROR", f"the message must be a JSON object, not {kind}")
    # OpenEnv would repeat the nested value in its error, and fail while it encodes that.
    if _is_deeper(message, MAX_DEPTH):
        return Refusal("VALIDATION_ERROR", f"the message is nested deeper than {MAX_DEPTH} levels")
    # Such a string has no UTF-8 form, so OpenEnv could not send any answer that contains it.
    if "\\u" in text and _has_lone_surrogate(message):
        return Refusal("VALIDATION_ERROR", "the message contains half of a surrogate pair")
    return None


def tidy_error(text: str) -> str:
    """Return an error frame of OpenEnv that explains the fault and does not repeat the input."""
    frame = json.loads(text)
    data = frame["data"]
    sentence = str(data.get("message", ""))
    if "errors" in data:
        data["errors"] = [
            {key: error[key] for key in ("type", "loc", "msg") if key in error}
            for error in data["errors"]
        ]
        sentence = ": ".join([sentence, "; ".join(map(_explain, data["errors"]))])
    data["message"] = sentence[:MAX_ERROR_CHARACTERS]
    return json.dumps(frame)


def _explain(error: Mapping[str, Any]) -> str:
    field = ".".join(str(part) for part in error.get("loc", ()))
    return f"{field}: {error.get('msg', '')}" if field else str(error.get("msg", ""))


def _openenv_error(refusal: Refusal) -> Message:
    return _text_frame({"type": "error", "data": refusal._asdict()})


def _json_rpc_error(refusal: Refusal) -> Message:
    error = {"code": JSON_RPC_CODES[refusal.code], "message": refusal.message}
    # JSON-RPC 2.0, section 5: the id is null if that of the request could not be read.
    return _text_frame({"jsonrpc": "2.0", "error": error, "id": None})


def _text_frame(content: Mapping[str, object]) -> Message:
    return {"type": "websocket.send", "text": json.dumps(content)}


_ERROR_FRAMES: Final = {"/ws": _openenv_error, "/mcp": _json_rpc_error}


def _is_deeper(value: object, limit: int) -> bool:
    # Level by level instead of by recursion, which hostile nesting could exhaust.
    level = [value]
    for _ in range(limit):
        level = [
            child
            for parent in level
            if isinstance(parent, dict | list)
            for child in (parent.values() if isinstance(parent, dict) else parent)
        ]
        if not level:
            return False
    return True


def _has_lone_surrogate(value: object) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False
