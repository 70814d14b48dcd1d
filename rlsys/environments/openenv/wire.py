"""Messages of OpenEnv 0.10, over HTTP and WebSocket: how they are sent and how answers are read."""

from __future__ import annotations

import asyncio
import json
import urllib.request
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
    """No answer in time, or none that means anything."""


class NotOpenEnv(Exception):
    """What answers over HTTP is something else."""


class Frame(BaseModel):
    """A frame of the server."""

    type: str
    data: dict[str, Any]

    @property
    def code(self) -> str | None:
        """The code of an error; None if it is none."""
        return str(self.data.get("code")) if self.type == "error" else None

    @property
    def sentence(self) -> str:
        """What the server says of an error."""
        return str(self.data.get("message"))


class Observed(BaseModel):
    """The data of an answer to a reset or a step. A reward may be null, and then counts 0."""

    observation: dict[str, Any]
    reward: Annotated[float, Field(allow_inf_nan=False)] | None = None
    done: bool = False


class Part(BaseModel):
    """JSON schema of an observation or an action, as far as it matters."""

    properties: dict[str, Any] = {}


class Schema(BaseModel):
    """The answer to GET /schema."""

    observation: Part
    action: Part


class Health(BaseModel):
    """The answer to GET /health."""

    status: str


async def ask(socket: ClientConnection, message: dict[str, Any], timeout_s: float) -> Frame:
    """Send a message and return the answer. Raises ConnectionClosed, NoAnswer.

    After a NoAnswer, or when cancelled, the socket is of no more use: an answer that comes late
    would be taken for the next one's.
    """
    try:
        async with asyncio.timeout(timeout_s):
            # Where the server closed the socket, its last words may still wait to be read.
            with suppress(ConnectionClosed):
                await socket.send(json.dumps(message))
            return Frame.model_validate_json(await socket.recv())
    except TimeoutError:
        raise NoAnswer(f"no answer within {timeout_s:g} s") from None
    except ValidationError:
        raise NoAnswer("an answer that is not OpenEnv's") from None


def http_get(url: str, model: type[Parsed], *, proxied: bool) -> Parsed:
    """Return the JSON object at `url`, asking the machine's HTTP proxy or not.

    Raises OSError if nobody answers, NotOpenEnv for anything but such an object.
    """
    handlers = [] if proxied else [urllib.request.ProxyHandler({})]
    try:
        opener = urllib.request.build_opener(*handlers)
        with opener.open(url, timeout=HTTP_TIMEOUT_S) as response:
            return model.model_validate_json(response.read())
    except HTTPError as error:
        raise NotOpenEnv(f"HTTP status {error.code}") from None
    except HTTPException:
        raise NotOpenEnv("something that is not HTTP") from None
    except ValidationError:
        raise NotOpenEnv(f"no {model.__name__.lower()} of OpenEnv") from None
