"""The FastAPI application: OpenEnv's routes over one shared corpus, guarded and bounded."""

from __future__ import annotations

from functools import partial

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from openenv.core.env_server import create_app
from openenv.core.env_server.types import ConcurrencyConfig
from pydantic import ValidationError

from rlsys.environments.economics.config import EconomicsServerConfig
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
from rlsys.errors import UserError

HTTP_UNPROCESSABLE = 422


def create_economics_app(config: EconomicsServerConfig) -> FastAPI:
    """Return the application, its corpus and tokenizer loaded.

    Raises DataError or ModelError if those cannot be loaded: nothing is served in their place.
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
            # Of sessions opened over JSON-RPC; the guard ends those of sockets, and first.
            session_timeout=2 * config.idle_timeout_s,
        ),
        state_cls=EconomicsState,
    )
    app.add_middleware(
        FrameGuard,
        idle_timeout_s=config.idle_timeout_s,
        max_frame_characters=config.max_frame_characters,
    )
    # One HTTP request is one fresh environment, so that these show what is wrong, and no more.
    app.add_exception_handler(UserError, _refused)
    app.add_exception_handler(ValidationError, _invalid)
    shared_grader().warm_up()
    return app


def serve(config: EconomicsServerConfig) -> None:
    """Serve until stopped."""
    app = create_economics_app(config)
    corpus = load_corpus(config.environment.corpus)
    print(
        f"economics environment at http://{config.host}:{config.port}: {len(corpus)} questions "
        f"from {corpus.source}, at most {config.max_sessions} sessions",
        flush=True,
    )
    uvicorn.run(
        app,
        host=config.host,
        port=config.port,
        # In bytes, of which a character takes up to four, or twelve where JSON escapes it.
        ws_max_size=12 * config.max_frame_characters,
        log_level="warning",
    )


async def _refused(request: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"detail": str(error)}, HTTP_UNPROCESSABLE)


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ValidationError)
    details = error.errors(include_url=False, include_input=False, include_context=False)
    return JSONResponse({"detail": details}, HTTP_UNPROCESSABLE)
