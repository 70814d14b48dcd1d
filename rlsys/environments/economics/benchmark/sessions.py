"""The environment as an evaluation plays it: in this process, or on a server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import NamedTuple, Protocol

from pydantic import ValidationError
from websockets.exceptions import WebSocketException

from rlsys.config.economics import EconomicsConfig
from rlsys.environments.economics.client import EconomicsClient
from rlsys.environments.economics.environment import EconomicsEnvironment
from rlsys.environments.economics.errors import EndpointError
from rlsys.environments.economics.models import (
    AnswerMetadata,
    EconomicsAction,
    EconomicsObservation,
)
from rlsys.errors import EpisodeLost


class Answer(NamedTuple):
    """What an agent says to a question."""

    text: str
    """All of it is charged."""
    visible: str | None = None
    """The end of the text that is graded, where a thought comes before it; None grades all."""
    sampled_tokens: int | None = None
    """Sampled ids, which an environment that trusts its client charges."""
    allocated: int | None = None
    """Tokens that an allocator granted."""
    failed: bool = False
    """True if the model could not be asked; the text is then empty."""


class ResetWith(NamedTuple):
    """What a reset sends beside the seed."""

    total_budget: int | None = None
    tokenizer_name: str | None = None


class Session(Protocol):
    """Episodes one after the other."""

    async def reset(self, seed: int, options: ResetWith) -> EconomicsObservation:
        """Begin an episode."""
        ...

    async def answer(self, answer: Answer) -> EconomicsObservation:
        """Answer the current question."""
        ...


Sessions = Callable[[], AbstractAsyncContextManager[Session]]
"""Opens one more session."""


def local_sessions(config: EconomicsConfig) -> Sessions:
    """Return sessions with environments of this process."""

    @asynccontextmanager
    async def open_session() -> AsyncIterator[Session]:
        yield _LocalSession(EconomicsEnvironment(config))

    return open_session


def served_sessions(url: str) -> Sessions:
    """Return sessions with the server at `url`.

    Opening one raises EndpointError if nothing answers there; playing raises EpisodeLost if the
    server goes away or refuses, EndpointError if its observations are not those of the environment.
    """

    @asynccontextmanager
    async def open_session() -> AsyncIterator[Session]:
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

    async def reset(self, seed: int, options: ResetWith) -> EconomicsObservation:
        return self._environment.reset(seed=seed, **options._asdict())

    async def answer(self, answer: Answer) -> EconomicsObservation:
        # Grading may take seconds; other episodes go on meanwhile.
        return await asyncio.to_thread(self._environment.step, _action(answer))


class _ServedSession:
    def __init__(self, url: str, client: EconomicsClient) -> None:
        self._url = url
        self._client = client

    async def reset(self, seed: int, options: ResetWith) -> EconomicsObservation:
        given = {name: value for name, value in options._asdict().items() if value is not None}
        with _losses(self._url):
            result = await self._client.reset(seed=seed, **given)
        observation: EconomicsObservation = result.observation
        return observation

    async def answer(self, answer: Answer) -> EconomicsObservation:
        with _losses(self._url):
            result = await self._client.step(_action(answer))
        observation: EconomicsObservation = result.observation
        return observation


def _action(answer: Answer) -> EconomicsAction:
    metadata = AnswerMetadata()
    if answer.visible is not None:
        # A blank one would have all of the text graded, and a single character holds no box.
        nothing = answer.text.rstrip()[-1:]
        metadata["grading_response"] = answer.visible if answer.visible.strip() else nothing
    if answer.sampled_tokens is not None:
        metadata["sampled_tokens"] = answer.sampled_tokens
    return EconomicsAction(response=answer.text, metadata=metadata)


@contextmanager
def _losses(url: str) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError, WebSocketException) as error:  # RuntimeError: an error frame
        full = "CAPACITY_REACHED" in str(error)
        remedy = "; lower the agent's concurrency, or raise the server's max_sessions" * full
        sentence = f"the economics server at {url} ended the session: {error}{remedy}"
        raise EpisodeLost(sentence) from error
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        place = ".".join(map(str, fault["loc"]))
        raise EndpointError(
            f"an observation of {url} is none of this environment ({place}: {fault['msg']}); start "
            "the server with rlsys serve-env of the same version"
        ) from error
