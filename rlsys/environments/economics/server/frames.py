"""A guard between the socket and OpenEnv, so that no message can end a session or flood a log.

OpenEnv closes a session on anything that breaks its own JSON handling: a binary frame, a JSON
array, nesting too deep to be echoed, half a surrogate pair. Its sessions also never end by
themselves. The guard answers such frames itself, with the same error frames, lets everything else
through, and ends a session that stays silent or whose client is gone.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any, NamedTuple

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

MAX_DEPTH = 32
MAX_ERROR_CHARACTERS = 500


class Refusal(NamedTuple):
    """An error frame of OpenEnv."""

    code: str
    message: str


class FrameGuard:
    """ASGI middleware around the WebSocket endpoint `/ws`; other requests pass untouched."""

    def __init__(self, app: App, *, idle_timeout_s: float, max_frame_characters: int) -> None:
        """Guard `app`."""
        self._app = app
        self._idle_timeout_s = idle_timeout_s
        self._max_frame_characters = max_frame_characters

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Run one request."""
        if scope["type"] != "websocket" or scope["path"] != "/ws":
            await self._app(scope, receive, send)
            return

        async def guarded_receive() -> Message:
            while True:
                try:
                    async with asyncio.timeout(self._idle_timeout_s):
                        message = await receive()
                except TimeoutError:
                    reason = f"nothing was sent for {self._idle_timeout_s:g} s; connect again"
                    await send(_error_frame(Refusal("SESSION_ERROR", reason)))
                    return {"type": "websocket.disconnect", "code": 1001}
                if message["type"] != "websocket.receive":
                    return message
                refusal = refuse(message.get("text"), self._max_frame_characters)
                if refusal is None:
                    return message
                await send(_error_frame(refusal))

        async def guarded_send(message: Message) -> None:
            text = message.get("text")
            if isinstance(text, str) and text.startswith('{"type":"error"'):
                message = {**message, "text": tidy_error(text)}
            # To a client that left: OpenEnv would answer the failure with more messages, and a
            # page of log. It learns of the end from its next receive.
            with suppress(OSError):
                await send(message)

        await self._app(scope, guarded_receive, guarded_send)


def refuse(text: str | None, max_characters: int) -> Refusal | None:
    """Return why OpenEnv must not see a frame, None if it may."""
    if text is None:
        return Refusal("INVALID_JSON", "a binary frame; send JSON text")
    if len(text) > max_characters:
        length = f"{len(text)} characters, more than the {max_characters} that are read"
        return Refusal("VALIDATION_ERROR", f"the message has {length}; send a shorter one")
    try:
        message = json.loads(text)
    except (ValueError, RecursionError) as error:
        return Refusal("INVALID_JSON", f"Invalid JSON: {error}"[:MAX_ERROR_CHARACTERS])
    if not isinstance(message, dict):
        kind = type(message).__name__
        return Refusal(
            "VALIDATION_ERROR", f'a message is an object like {{"type":...}}, not {kind}'
        )
    if _is_deeper(message, MAX_DEPTH):
        return Refusal("VALIDATION_ERROR", f"the message is nested deeper than {MAX_DEPTH}")
    if "\\u" in text and _has_lone_surrogate(message):
        return Refusal("VALIDATION_ERROR", "the message holds half a surrogate pair, not a text")
    return None


def tidy_error(text: str) -> str:
    """Say in an error frame's message what is wrong, and do not echo what was sent."""
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


def _explain(error: dict[str, Any]) -> str:
    place = ".".join(str(part) for part in error.get("loc", ()))
    return f"{place}: {error.get('msg', '')}" if place else str(error.get("msg", ""))


def _error_frame(refusal: Refusal) -> Message:
    data = {"message": refusal.message, "code": refusal.code}
    return {"type": "websocket.send", "text": json.dumps({"type": "error", "data": data})}


def _is_deeper(value: Any, limit: int) -> bool:
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


def _has_lone_surrogate(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False
