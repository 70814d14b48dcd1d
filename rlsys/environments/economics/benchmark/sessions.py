"""The environment as the benchmark plays it: in this process, or on a server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import NamedTuple, Protocol

from pydantic import ValidationError
from websockets.exceptions import WebSocketException

from rlsys.config.economics import EconomicsConfig
from rlsys.environments.economics.benchmark.agents import AgentAnswer
from rlsys.environments.economics.client import EconomicsClient
from rlsys.environments.economics.environment import EconomicsEnvironment
from rlsys.environments.economics.errors import EndpointError
from rlsys.environments.economics.models import (
    AnswerMetadata,
    EconomicsAction,
    EconomicsObservation,
)
from rlsys.errors import EpisodeLost


class ResetArguments(NamedTuple):
    """Arguments of a reset beside the seed."""

    total_budget: int | None = None
    tokenizer_name: str | None = None


class PlaySession(Protocol):
    """Plays one episode after the other."""

    async def reset(self, seed: int, arguments: ResetArguments) -> EconomicsObservation:
        """Begin an episode."""
        ...

    async def answer(self, answer: AgentAnswer) -> EconomicsObservation:
        """Answer the current question."""
        ...


OpenSession = Callable[[], AbstractAsyncContextManager[PlaySession]]
"""Opens one more session."""


def local_sessions(config: EconomicsConfig) -> OpenSession:
    """Return a function that opens sessions with environments in this process."""

    @asynccontextmanager
    async def open_session() -> AsyncIterator[PlaySession]:
        yield _LocalSession(EconomicsEnvironment(config))

    return open_session


def served_sessions(url: str) -> OpenSession:
    """Return a function that opens sessions with the server at `url`.

    Opening one raises EndpointError if no server answers. Playing raises EpisodeLost if the server
    ends the session, and EndpointError if an observation is not one of this environment.
    """

    @asynccontextmanager
    async def open_session() -> AsyncIterator[PlaySession]:
        client = EconomicsClient(base_url=url)
        try:
            await client.connect()
        except ConnectionError as error:
            raise EndpointError(
                f"no economics server answers at {url} ({error.__cause__ or error}); start one "
                "with rlsys serve-env, or correct url"
            ) from error
        try:
            yield _ServedSession(url, client)
        finally:
            await client.close()

    return open_session


class _LocalSession:
    def __init__(self, environment: EconomicsEnvironment) -> None:
        self._environment = environment

    async def reset(self, seed: int, arguments: ResetArguments) -> EconomicsObservation:
        return self._environment.reset(seed=seed, **arguments._asdict())

    async def answer(self, answer: AgentAnswer) -> EconomicsObservation:
        # In a thread, because grading may take seconds and would stop all other episodes.
        return await asyncio.to_thread(self._environment.step, _action(answer))


class _ServedSession:
    def __init__(self, url: str, client: EconomicsClient) -> None:
        self._url = url
        self._client = client

    async def reset(self, seed: int, arguments: ResetArguments) -> EconomicsObservation:
        given = {name: value for name, value in arguments._asdict().items() if value is not None}
        with _server_errors(self._url):
            result = await self._client.reset(seed=seed, **given)
        observation: EconomicsObservation = result.observation
        return observation

    async def answer(self, answer: AgentAnswer) -> EconomicsObservation:
        with _server_errors(self._url):
            result = await self._client.step(_action(answer))
        observation: EconomicsObservation = result.observation
        return observation


def _action(answer: AgentAnswer) -> EconomicsAction:
    metadata = AnswerMetadata()
    if answer.visible is not None:
        # The environment grades the whole text if the visible part is blank. The last character
        # alone is sent instead: it is never blank and cannot hold a box, so nothing is graded.
        nothing = answer.text.rstrip()[-1:]
        metadata["grading_response"] = answer.visible if answer.visible.strip() else nothing
    if answer.sampled_tokens is not None:
        metadata["sampled_tokens"] = answer.sampled_tokens
    return EconomicsAction(response=answer.text, metadata=metadata)


@contextmanager
def _server_errors(url: str) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError, WebSocketException) as error:  # RuntimeError: an error frame
        full = "CAPACITY_REACHED" in str(error)
        remedy = "; lower the agent's concurrency, or raise the server's max_sessions" * full
        sentence = f"the economics server at {url} ended the session: {error}{remedy}"
        raise EpisodeLost(sentence) from error
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        field = ".".join(map(str, fault["loc"]))
        raise EndpointError(
            f"{url} sent an observation that is not of the economics environment ({field}: "
            f"{fault['msg']}); start rlsys serve-env of the same version there"
        ) from error
