"""Messages of OpenEnv 0.10 over HTTP and WebSocket: send them, and parse the answers."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from http.client import HTTPException
from typing import Annotated, Any, TypeVar
from urllib.error import HTTPError

from pydantic import BaseModel, Field, ValidationError
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

HTTP_TIMEOUT_S = 10.0

Parsed = TypeVar("Parsed", bound=BaseModel)


class NoAnswer(Exception):
    """No answer in time, or an answer that is not a frame of OpenEnv."""


class NotOpenEnv(Exception):
    """The HTTP answer does not come from an OpenEnv server."""


class Frame(BaseModel):
    """One message from the server."""

    type: str
    data: dict[str, Any]

    @property
    def code(self) -> str | None:
        """The code of an error frame; None for any other frame."""
        return str(self.data.get("code")) if self.type == "error" else None

    @property
    def sentence(self) -> str:
        """The message of an error frame."""
        return str(self.data.get("message"))


class Observed(BaseModel):
    """The data of an answer to a reset or a step. A reward of null counts as 0."""

    observation: dict[str, Any]
    reward: Annotated[float, Field(allow_inf_nan=False)] | None = None
    done: bool = False


class Part(BaseModel):
    """The part of the JSON schema of an observation or an action that is checked."""

    properties: dict[str, object] = {}


class Schema(BaseModel):
    """The answer to GET /schema."""

    observation: Part
    action: Part


class Health(BaseModel):
    """The answer to GET /health."""

    status: str


async def ask(socket: ClientConnection, message: Mapping[str, object], timeout_s: float) -> Frame:
    """Send a message and return the answer. Raises ConnectionClosed, NoAnswer.

    Do not use the socket after a NoAnswer or a cancellation: a late answer would be taken for the
    answer to the next message.
    """
    try:
        async with asyncio.timeout(timeout_s):
            # If the server has closed the socket, its last frame may still be in the buffer. It
            # often holds the reason, so receive even if sending fails.
            with suppress(ConnectionClosed):
                await socket.send(json.dumps(message))
            return Frame.model_validate_json(await socket.recv())
    except TimeoutError:
        raise NoAnswer(f"no answer within {timeout_s:g} s") from None
    except ValidationError:
        raise NoAnswer("the answer is not a frame of OpenEnv") from None


def http_get(url: str, model: type[Parsed], *, proxied: bool) -> Parsed:
    """Return the JSON object at `url`, parsed as `model`.

    `proxied` False ignores the HTTP proxy of the environment variables.

    Raises:
        OSError: nothing answers.
        NotOpenEnv: the answer is not such an object.
    """
    handlers = [] if proxied else [urllib.request.ProxyHandler({})]
    try:
        opener = urllib.request.build_opener(*handlers)
        with opener.open(url, timeout=HTTP_TIMEOUT_S) as response:
            return model.model_validate_json(response.read())
    except HTTPError as error:
        raise NotOpenEnv(f"HTTP status {error.code}") from None
    except HTTPException:
        raise NotOpenEnv("the answer is not HTTP") from None
    except ValidationError:
        raise NotOpenEnv(f"the answer is not the {model.__name__.lower()} of OpenEnv") from None
