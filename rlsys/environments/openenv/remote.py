"""An environment behind a URL: any OpenEnv 0.10 server, through its WebSocket sessions.

The messages are sent over a plain WebSocket (`wire`), not with the client of OpenEnv, for three
reasons. That client opens a new session when the old one is gone, so an episode would continue in
an environment that has not seen its beginning. It puts the code of an error into a sentence, from
which the code cannot be read reliably. And importing it takes six seconds and 190 MiB in every
environment actor.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import random
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
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
    Parsed,
    Schema,
    ask,
    http_get,
)
from rlsys.environments.turns import Reply, Turn
from rlsys.errors import ConfigError, EpisodeLost

MAX_MESSAGE_BYTES = 16 * 2**20
PING_INTERVAL_S = 20.0
"""Proxies close idle sockets. Pings keep the socket open while the policy writes a long reply."""
CLOSE_TIMEOUT_S = 5.0
FIRST_DELAY_S, LONGEST_DELAY_S = 0.1, 5.0
FULL_NOTE_S = 60.0
"""Least seconds between two warnings that the server is full."""

_log = logging.getLogger(__name__)


class RemoteEnvironment:
    """A TurnEnvironment whose sessions are sockets; each session plays one episode at a time.

    Use it from one event loop only. Several processes may use one server. Together they should open
    no more sessions than the server allows, because each further session waits and tries again.

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
        """Store the address of the server; nothing is sent yet.

        Args:
            url: http or https address.
            dialect: field names of the environment.
            max_sessions: most sockets at once.
            patience_s: seconds to try again while the server does not answer.
            message_timeout_s: seconds until a connection or an answer counts as failed.

        Raises:
            ConfigError: the URL is not http or https.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(
                f"environment.url {url!r} is not an http or https URL; "
                "write for instance http://127.0.0.1:8000"
            )
        self.url = parts.geturl().rstrip("/")
        self.dialect = dialect
        # A proxy cannot reach the loopback address of this machine.
        self._proxied = not _is_loopback(parts.hostname)
        self._patience_s = patience_s
        self._message_timeout_s = message_timeout_s
        self._leases = asyncio.Semaphore(max_sessions)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[RemoteSession]:
        """Lease a session. Waits while the server is full.

        Raises EpisodeLost if the server does not answer for `patience_s`.
        """
        # The semaphore keeps this process below its share of the server's sessions. Without it all
        # waiting episodes would open a socket and be refused again and again.
        async with self._leases:
            socket = await self._open()
            try:
                yield RemoteSession(self, socket, self._message_timeout_s)
            finally:
                await socket.close()

    async def check(self) -> None:
        """Check before a run that episodes can be played on this server. Does not wait or retry.

        If the server is full, only a warning is logged: sessions become free when other episodes
        end.

        Raises:
            ConfigError: nothing answers, the answer is not from an OpenEnv server, a field of the
                dialect is missing, a reset fails, or the dialect refuses the first observation.
        """
        try:
            # urllib blocks, so it runs in a thread and the event loop stays free.
            health = await asyncio.to_thread(self._get, "/health", Health)
            schema = await asyncio.to_thread(self._get, "/schema", Schema)
        except NotOpenEnv as error:
            raise ConfigError(
                f"the server at environment.url {self.url!r} is not an OpenEnv server ({error}); "
                "correct the URL"
            ) from None
        except OSError as error:
            raise ConfigError(
                f"no server answers at environment.url {self.url!r} "
                f"({getattr(error, 'reason', error)}); start the server, for instance with "
                "`rlsys serve-env`, or correct the URL"
            ) from None
        if health.status != "healthy":
            raise ConfigError(
                f"the server at environment.url {self.url!r} has the status {health.status!r}, not "
                "'healthy'; see its log"
            )
        self._check_fields("observation", schema.observation.properties)
        self._check_fields("action", schema.action.properties)
        try:
            refusal = await self._first_refusal()
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

    async def _first_refusal(self) -> str | None:
        """Begin an episode; return the refusal of the dialect, or None.

        Raises:
            _Full: the server has no free session.
            ConfigError: no session could be opened at the first attempt.
            EpisodeLost: the reset failed.
        """
        try:
            socket = await self._connect()
        except (OSError, WebSocketException, NoAnswer) as error:
            raise ConfigError(
                f"no session could be opened at environment.url {self.url!r} ({_reason(error)}); "
                "see the server's log"
            ) from None
        try:
            # A real reset: only the server can tell whether it accepts the options of the dialect.
            session = RemoteSession(self, socket, self._message_timeout_s)
            await session.reset(seed=0)
            return self.dialect.refusal(session.seen)
        finally:
            await socket.close()

    def _get(self, path: str, model: type[Parsed]) -> Parsed:
        return http_get(self.url + path, model, proxied=self._proxied)

    def _check_fields(self, part: str, known: Mapping[str, object]) -> None:
        dialect = self.dialect
        wanted = dialect.observation_fields if part == "observation" else (dialect.action_field,)
        for name in wanted:
            if name not in known:
                raise ConfigError(
                    f"the {part} of the environment at environment.url {self.url!r} has no field "
                    f"{name!r}; it has {', '.join(sorted(known))}; name one of them"
                )

    async def _open(self) -> ClientConnection:
        """Ask for a session until the server grants one."""
        last_answer = last_warning = time.monotonic()
        for delay in _delays():
            try:
                return await self._connect()
            except _Full as full:
                # A full server works, and sessions become free when episodes end. So this may take
                # any time, and the patience for a server that does not answer starts again.
                last_answer = time.monotonic()
                if last_answer - last_warning > FULL_NOTE_S:
                    last_warning = last_answer
                    _log.warning("%s is full, waiting for a session: %s", self.url, full)
            except (OSError, WebSocketException, NoAnswer) as error:
                left = self._patience_s - (time.monotonic() - last_answer)
                if left <= 0:
                    raise EpisodeLost(
                        f"no session could be opened at {self.url} for {self._patience_s:g} s "
                        f"({_reason(error)})"
                    ) from error
                # The last attempt is at the end of the patience, not after it.
                delay = min(delay, left)
            await asyncio.sleep(delay)
        raise AssertionError("_delays() is endless")

    async def _connect(self) -> ClientConnection:
        """Open a socket and ask for the state of the session.

        A full server accepts the socket and sends the error CAPACITY_REACHED in place of the first
        answer. So a session is granted only after the first answer.
        """
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
        except BaseException:  # cancellation included: an open socket would keep its session
            await socket.close()
            raise
        # Some servers have no state before the first reset and answer with another error code. The
        # session is granted in that case too.
        return socket


class RemoteSession:
    """A TurnSession over one socket. After it has lost an episode, it cannot be used again."""

    def __init__(
        self, environment: RemoteEnvironment, socket: ClientConnection, timeout_s: float
    ) -> None:
        """Use a socket whose session the server has granted."""
        self._environment = environment
        self._socket = socket
        self._timeout_s = timeout_s
        self._usable = True
        self._seen: Fields = {}

    @property
    def seen(self) -> Fields:
        """The fields of the newest observation; empty before the first one."""
        return self._seen

    async def reset(self, seed: int) -> Turn:
        """Begin the episode of this seed. Raises EpisodeLost."""
        options = {**self._environment.dialect.reset_options, "seed": seed}
        return await self._exchange({"type": "reset", "data": options}, None)

    async def reply(self, reply: Reply) -> Turn:
        """Send a reply to the previous turn. Raises EpisodeLost."""
        action = self._environment.dialect.write(self._seen, reply)
        return await self._exchange({"type": "step", "data": action}, self._seen)

    async def _exchange(self, message: Mapping[str, object], before: Fields | None) -> Turn:
        dialect, kind = self._environment.dialect, str(message["type"])
        if not self._usable:
            raise self._lost(kind, "the session has failed before")
        # Unusable until the answer is complete. If the wait ends in any other way, cancellation
        # included, a late answer may arrive; the next call would take it for its own answer. Then
        # the episode cannot continue on this socket; it must start again from reset.
        self._usable = False
        try:
            answer = await ask(self._socket, message, self._timeout_s)
            if answer.code is not None:
                raise self._lost(kind, f"{answer.code}: {answer.sentence}")
            observed = Observed.model_validate(answer.data)
        except (OSError, WebSocketException, NoAnswer) as error:
            raise self._lost(kind, _reason(error)) from error
        except ValidationError as error:
            detail = error.errors()[0]
            path = ".".join(map(str, detail["loc"]))
            raise self._lost(kind, f"{path}: {detail['msg']}") from None
        fields = observed.observation
        missing = [name for name in dialect.observation_fields if name not in fields]
        if missing:
            raise self._lost(kind, f"its observation has no field {missing[0]!r}")
        self._seen, self._usable = fields, True
        return dialect.read(before, fields, observed.reward or 0.0, observed.done)

    def _lost(self, kind: str, reason: str) -> EpisodeLost:
        return EpisodeLost(
            f"the environment at {self._environment.url} failed at a {kind} ({reason})"
        )


class _Full(Exception):
    """The server has no free session."""


def _delays() -> Iterator[float]:
    """Yield the seconds before each further attempt: exponential back-off with full jitter.

    Random delays spread the attempts of many waiting episodes, so they do not arrive together.
    """
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
