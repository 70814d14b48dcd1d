"""The FastAPI application: OpenEnv's routes, one shared corpus, and guarded sockets."""

from __future__ import annotations

import socket
from functools import partial

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from openenv.core.env_server import create_app
from openenv.core.env_server.types import ConcurrencyConfig
from pydantic import ValidationError

from rlsys.config.economics import EconomicsServerConfig
from rlsys.environments.economics.counting import load_tokenizer
from rlsys.environments.economics.environment import EconomicsEnvironment
from rlsys.environments.economics.grading import shared_grader
from rlsys.environments.economics.models import (
    EconomicsAction,
    EconomicsObservation,
    EconomicsState,
)
from rlsys.environments.economics.questions import load_corpus
from rlsys.environments.economics.server.frames import FrameGuard
from rlsys.errors import ConfigError, UserError

HTTP_UNPROCESSABLE = 422
BACKLOG = 2048
"""Connections that may wait to be accepted."""


def create_economics_app(config: EconomicsServerConfig) -> FastAPI:
    """Return the application with its corpus and tokenizer loaded.

    Raises DataError or ModelError if they cannot be loaded.
    """
    load_corpus(config.environment.corpus)
    if config.environment.tokenizer is not None:
        load_tokenizer(config.environment.tokenizer)
    app: FastAPI = create_app(
        partial(EconomicsEnvironment, config.environment),
        EconomicsAction,
        EconomicsObservation,
        env_name="economics",
        concurrency_config=ConcurrencyConfig(
            max_concurrent_envs=config.max_sessions,
            # This ends sessions that were opened with JSON-RPC over HTTP. It would also end those
            # of sockets, so it is twice as long: the guard then ends them first, with a message.
            session_timeout=2 * config.idle_timeout_s,
        ),
        state_cls=EconomicsState,
    )
    app.add_middleware(
        FrameGuard,
        idle_timeout_s=config.idle_timeout_s,
        max_frame_characters=config.max_frame_characters,
    )
    # Only plain HTTP requests reach these two; sockets get error frames.
    app.add_exception_handler(UserError, _user_error)
    app.add_exception_handler(ValidationError, _validation_error)
    shared_grader().warm_up()
    return app


def serve(config: EconomicsServerConfig) -> None:
    """Serve until stopped. Prints the URL once the port is bound.

    Raises DataError or ModelError if questions or tokenizer cannot be loaded, ConfigError if host
    and port cannot be bound.
    """
    app = create_economics_app(config)
    corpus = load_corpus(config.environment.corpus)
    with bind(config.host, config.port) as listener:
        print(
            f"economics environment at {url_of(listener)}: {len(corpus)} questions from "
            f"{corpus.source}, at most {config.max_sessions} sessions",
            flush=True,
        )
        server = uvicorn.Server(
            uvicorn.Config(
                app,
                # In bytes: a character has up to 4 in UTF-8, and up to 12 if JSON escapes it.
                ws_max_size=12 * config.max_frame_characters,
                log_level="warning",
            )
        )
        server.run(sockets=[listener])


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that listens at host and port; port 0 takes a free port.

    Raises ConfigError if that is not possible.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise ConfigError(
            f"cannot listen at host {host!r}, port {port} ({error.strerror}); choose another host "
            "or port, or port=0 for a free one"
        ) from error


def url_of(listener: socket.socket) -> str:
    """Return the URL of a listening socket, with its real port."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def _user_error(request: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"detail": str(error)}, HTTP_UNPROCESSABLE)


async def _validation_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ValidationError)
    details = error.errors(include_url=False, include_input=False, include_context=False)
    return JSONResponse({"detail": details}, HTTP_UNPROCESSABLE)
