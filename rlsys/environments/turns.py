"""What passes between a policy and an environment of several turns, in process or behind a URL."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from types import MappingProxyType
from typing import NamedTuple, Protocol

NO_FACTS: Mapping[str, float | str] = MappingProxyType({})


class Turn(NamedTuple):
    """What the environment says next."""

    text: str
    """The user turn; whatever it holds once the episode is done is not shown to the policy."""
    reward: float = 0.0
    """For the reply before; 0 at reset."""
    done: bool = False
    remaining: int | None = None
    """Tokens that the policy may still sample in this episode; None without a shared budget."""
    facts: Mapping[str, float | str] = NO_FACTS
    """Numbers for reports, e.g. correct, difficulty, tokens."""


class Reply(NamedTuple):
    """What the policy says to it."""

    text: str
    """The decoded sampled ids, thought included."""
    visible: str
    """The part after the thought."""
    tokens: int
    """Sampled ids, EOS and thought included."""


class TurnSession(Protocol):
    """Episodes one after the other. Not safe for two tasks at once."""

    async def reset(self, seed: int) -> Turn:
        """Begin an episode; the same seed begins the same one. Raises EpisodeLost."""
        ...

    async def reply(self, reply: Reply) -> Turn:
        """Answer the turn before. Raises EpisodeLost; the session is then of no more use."""
        ...


class TurnEnvironment(Protocol):
    """Where sessions come from."""

    def session(self) -> AbstractAsyncContextManager[TurnSession]:
        """Lease a session: waits for capacity on entry, gives it back on exit, whatever happens."""
        ...
