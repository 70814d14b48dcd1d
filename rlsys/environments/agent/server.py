"""The HTTP server of an environment actor: chat completions for the agents of its episodes.

It listens at the loopback address. The API key of a request names the session, so agents that run
at the same time share one address and cannot read or continue each other's episodes.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from aiohttp import web

from rlsys.environments.agent.interface import Endpoint
from rlsys.environments.agent.session import Session
from rlsys.environments.agent.wire import MODEL, Refusal, read_request

HOST: Final = "127.0.0.1"
MAX_BODY_BYTES: Final = 16 * 2**20


class ChatServer:
    """Serves /v1/chat/completions and /v1/models. Use it from one event loop only."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}
        self._runner: web.AppRunner | None = None
        self._url = ""

    async def start(self) -> None:
        """Listen at a free port of the loopback address."""
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_get("/v1/models", self._models)
        # No log of requests: it would have a line for every reply of the run.
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, HOST, 0).start()
        host, port = self._runner.addresses[0][:2]
        self._url = f"http://{host}:{port}/v1"

    async def close(self) -> None:
        """Stop listening and end all connections."""
        if self._runner is not None:
            await self._runner.cleanup()

    @contextmanager
    def serving(self, session: Session) -> Iterator[Endpoint]:
        """Serve a session for the time of the block, under a key of its own."""
        key = f"rlsys-{secrets.token_urlsafe(24)}"
        self._sessions[key] = session
        try:
            yield Endpoint(base_url=self._url, api_key=key, model=MODEL)
        finally:
            del self._sessions[key]
            session.close()

    async def _complete(self, request: web.Request) -> web.Response:
        try:
            session = self._session(request)
            chat = read_request(await request.read())
            reply = await session.complete(chat, lambda: _is_open(request))
        except Refusal as refusal:
            return _refused(refusal)
        except web.HTTPRequestEntityTooLarge:
            return _refused(Refusal(f"the body has more than {MAX_BODY_BYTES} bytes", status=413))
        if not chat.stream:
            return web.json_response(reply.body(session.calls))
        events = reply.events(session.calls, usage=chat.stream_usage)
        lines = [*map(json.dumps, events), "[DONE]"]
        return web.Response(
            text="".join(f"data: {line}\n\n" for line in lines), content_type="text/event-stream"
        )

    async def _models(self, request: web.Request) -> web.Response:
        try:
            self._session(request)
        except Refusal as refusal:
            return _refused(refusal)
        model = {"id": MODEL, "object": "model", "created": 0, "owned_by": "rlsys"}
        return web.json_response({"object": "list", "data": [model]})

    def _session(self, request: web.Request) -> Session:
        kind, _, key = request.headers.get("Authorization", "").partition(" ")
        session = self._sessions.get(key) if kind.lower() == "bearer" else None
        if session is None:
            raise Refusal(
                "the API key belongs to no running episode; use the key that this agent was given, "
                "and stop when its episode has ended",
                status=401,
                code="invalid_api_key",
            )
        return session


def _refused(refusal: Refusal) -> web.Response:
    return web.json_response(refusal.body(), status=refusal.status)


def _is_open(request: web.Request) -> bool:
    """True while the client waits for the response."""
    return request.transport is not None and not request.transport.is_closing()
