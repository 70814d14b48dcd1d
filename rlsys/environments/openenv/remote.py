"""An environment behind a URL: any OpenEnv 0.10 server, through its WebSocket sessions.

The messages are sent over a plain socket (`wire`). OpenEnv's own client opens a new session when
the old one is gone, so that an episode would go on in an environment that never saw it begin; it
folds the code of an error into a sentence; and it takes six seconds and 190 MiB to import, for
every actor that grows episodes.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import random
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

from pydantic import ValidationError
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from rlsys.environments.openenv.dialects import Dialect, Fields
from rlsys.environments.openenv.wire import (
    Health,
    NoAnswer,
    NotOpenEnv,
    Observed,
    Schema,
    ask,
    http_get,
)
from rlsys.environments.turns import Reply, Turn
from rlsys.errors import ConfigError, EpisodeLost

MAX_MESSAGE_BYTES = 16 * 2**20
PING_INTERVAL_S = 20.0
"""Keeps what lies between here and the server from closing a socket while the policy writes."""
CLOSE_TIMEOUT_S = 5.0
FIRST_DELAY_S, LONGEST_DELAY_S = 0.1, 5.0
FULL_NOTE_S = 60.0

_log = logging.getLogger(__name__)


class RemoteEnvironment:
    """A TurnEnvironment whose sessions are sockets, with one episode at a time in each.

    To be used from one event loop. Several processes may play on one server: together they should
    ask for no more sessions than it serves, since who comes too late waits and asks again.

    Example:
        # rlsys serve-env environment.trusted=true
        environment = RemoteEnvironment("http://127.0.0.1:8000", EconomicsDialect())
        await environment.check()
        async with environment.session() as session:
            turn = await session.reset(seed=7)
    """

    def __init__(
        self,
        url: str,
        dialect: Dialect,
        *,
        max_sessions: int = 64,
        patience_s: float = 300.0,
        message_timeout_s: float = 60.0,
    ) -> None:
        """Name the server; nothing is sent yet.

        max_sessions: most sockets at once. patience_s: how long to try while nobody answers.
        message_timeout_s: how long a connection, or the answer to a message, may take.
        Raises ConfigError for a URL that is not http or https.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(
                f"environment.url {url!r} is not an http or https URL; "
                "write for instance http://127.0.0.1:8000"
            )
        self.url = parts.geturl().rstrip("/")
        self.dialect = dialect
        self._proxied = not _is_loopback(parts.hostname)
        self._patience_s = patience_s
        self._message_timeout_s = message_timeout_s
        self._leases = asyncio.Semaphore(max_sessions)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[RemoteSession]:
        """Lease a session; waits while the server is full, or for `patience_s` while it is away.

        Raises EpisodeLost if it stays away.
        """
        async with self._leases:
            socket = await self._open()
            try:
                yield RemoteSession(self, socket, self._message_timeout_s)
            finally:
                await socket.close()

    async def check(self) -> None:
        """Find out before a run whether its episodes can be played here; waits for nobody.

        A full server is only warned of: its episodes can be played when others have ended.
        Raises ConfigError that says why not: nobody answers, it is no OpenEnv server, it lacks
        fields of the dialect, refuses a reset, or the dialect objects to how it begins.
        """
        try:
            health = await asyncio.to_thread(self._get, "/health", Health)
            schema = await asyncio.to_thread(self._get, "/schema", Schema)
        except NotOpenEnv as error:
            raise ConfigError(
                f"what answers at environment.url {self.url!r} is no OpenEnv server ({error}); "
                "correct the URL"
            ) from None
        except OSError as error:
            raise ConfigError(
                f"nobody answers at environment.url {self.url!r} "
                f"({getattr(error, 'reason', error)}); start the server, for instance with "
                "`rlsys serve-env`, or correct the URL"
            ) from None
        if health.status != "healthy":
            raise ConfigError(
                f"the server at environment.url {self.url!r} says it is {health.status!r}, not "
                "'healthy'; see its log"
            )
        self._check_fields("observation", schema.observation.properties)
        self._check_fields("action", schema.action.properties)
        try:
            refusal = await self._check_first_turn()
        except _Full as full:
            _log.warning(
                "the server at environment.url %r is full (%s); episodes will wait for sessions",
                self.url,
                full,
            )
            return
        except EpisodeLost as error:
            raise ConfigError(
                f"{error}; correct what is sent with a reset "
                f"({', '.join(self.dialect.reset_options) or 'nothing but a seed'}) or the server"
            ) from None
        if refusal is not None:
            raise ConfigError(f"the server at environment.url {self.url!r}: {refusal}")

    async def _check_first_turn(self) -> str | None:
        """Begin an episode, and return what the dialect objects to.

        Raises _Full, ConfigError if no session is opened at the first attempt, EpisodeLost if its
        reset fails.
        """
        try:
            socket = await self._connect()
        except (OSError, WebSocketException, NoAnswer) as error:
            raise ConfigError(
                f"no session could be opened at environment.url {self.url!r} ({_reason(error)}); "
                "see the server's log"
            ) from None
        try:
            session = RemoteSession(self, socket, self._message_timeout_s)
            await session.reset(seed=0)
            return self.dialect.refusal(session.seen)
        finally:
            await socket.close()

    def _get(self, path: str, model: type[Any]) -> Any:
        return http_get(self.url + path, model, proxied=self._proxied)

    def _check_fields(self, part: str, known: dict[str, Any]) -> None:
        dialect = self.dialect
        wanted = dialect.observation_fields if part == "observation" else (dialect.action_field,)
        for name in wanted:
            if name not in known:
                raise ConfigError(
                    f"the {part} of the environment at environment.url {self.url!r} has no field "
                    f"{name!r}; it has {', '.join(sorted(known))}; name one of them"
                )

    async def _open(self) -> ClientConnection:
        """Ask for a session until it is granted."""
        heard = noted = time.monotonic()
        for delay in _delays():
            try:
                return await self._connect()
            except _Full as full:
                heard = time.monotonic()
                if heard - noted > FULL_NOTE_S:
                    noted = heard
                    _log.warning("%s is full, waiting for a session: %s", self.url, full)
            except (OSError, WebSocketException, NoAnswer) as error:
                left = self._patience_s - (time.monotonic() - heard)
                if left <= 0:
                    raise EpisodeLost(
                        f"no session could be opened at {self.url} for {self._patience_s:g} s "
                        f"({_reason(error)})"
                    ) from error
                delay = min(delay, left)
            await asyncio.sleep(delay)
        raise AssertionError("delays never end")

    async def _connect(self) -> ClientConnection:
        """Connect, and ask for the state: a full server says so only in place of an answer."""
        socket = await connect(
            self.url.replace("http", "ws", 1) + "/ws",
            open_timeout=self._message_timeout_s,
            ping_interval=PING_INTERVAL_S,
            ping_timeout=self._message_timeout_s,
            close_timeout=CLOSE_TIMEOUT_S,
            max_size=MAX_MESSAGE_BYTES,
            proxy=True if self._proxied else None,
        )
        try:
            answer = await ask(socket, {"type": "state"}, self._message_timeout_s)
            match answer.code:
                case "CAPACITY_REACHED":
                    raise _Full(answer.sentence)
                case "FACTORY_ERROR" | "SESSION_ERROR":
                    raise NoAnswer(answer.sentence)
        except BaseException:
            await socket.close()
            raise
        return socket  # also where there is no state before the first reset: that is an answer


class RemoteSession:
    """A TurnSession over one socket. Once it lost an episode it is of no more use."""

    def __init__(
        self, environment: RemoteEnvironment, socket: ClientConnection, timeout_s: float
    ) -> None:
        """Take over a socket whose session is granted."""
        self._environment = environment
        self._socket = socket
        self._timeout_s = timeout_s
        self._usable = True
        self._seen: Fields = {}

    @property
    def seen(self) -> Fields:
        """The newest observation, by field; empty before the first."""
        return self._seen

    async def reset(self, seed: int) -> Turn:
        """Begin the episode of a seed. Raises EpisodeLost."""
        options = {**self._environment.dialect.reset_options, "seed": seed}
        return await self._exchange({"type": "reset", "data": options}, None)

    async def reply(self, reply: Reply) -> Turn:
        """Send a reply to the turn before. Raises EpisodeLost."""
        action = self._environment.dialect.write(self._seen, reply)
        return await self._exchange({"type": "step", "data": action}, self._seen)

    async def _exchange(self, message: dict[str, Any], before: Fields | None) -> Turn:
        dialect, kind = self._environment.dialect, message["type"]
        if not self._usable:
            raise self._lost(kind, "the session failed before")
        self._usable = False  # until there is an answer, whatever ends the waiting for it
        try:
            answer = await ask(self._socket, message, self._timeout_s)
            if answer.code is not None:
                raise self._lost(kind, f"{answer.code}: {answer.sentence}")
            observed = Observed.model_validate(answer.data)
        except (OSError, WebSocketException, NoAnswer) as error:
            raise self._lost(kind, _reason(error)) from error
        except ValidationError as error:
            detail = error.errors()[0]
            place = ".".join(map(str, detail["loc"]))
            raise self._lost(kind, f"{place}: {detail['msg']}") from None
        fields = observed.observation
        missing = [name for name in dialect.observation_fields if name not in fields]
        if missing:
            raise self._lost(kind, f"no field {missing[0]!r} in its observation")
        self._seen, self._usable = fields, True
        return dialect.read(before, fields, observed.reward or 0.0, observed.done)

    def _lost(self, kind: str, reason: str) -> EpisodeLost:
        return EpisodeLost(
            f"the environment at {self._environment.url} failed at a {kind} ({reason})"
        )


class _Full(Exception):
    """The server serves as many sessions as it may."""


def _delays() -> Iterator[float]:
    """Exponential back-off with full jitter, in seconds: many who wait do not come at once."""
    longest = FIRST_DELAY_S
    while True:
        yield random.uniform(0, longest)
        longest = min(2 * longest, LONGEST_DELAY_S)


def _is_loopback(host: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
