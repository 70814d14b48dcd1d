"""What passes between a policy and an environment of several turns, in process or behind a URL."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, Protocol

from rlsys.records import TurnRecord


class Turn(NamedTuple):
    """What the environment answers."""

    text: str
    """The user turn; it is not shown to the policy once the episode is done."""
    reward: float = 0.0
    """For the reply before; 0 at reset."""
    done: bool = False
    remaining: int | None = None
    """Tokens that the policy may still sample in this episode; None without a shared budget."""
    unanswered: int = 0
    """Questions that the environment still has, this one included; it charges for those that an
    episode leaves. 0 where leaving early costs nothing."""
    record: TurnRecord = TurnRecord()
    """What it tells of the reply before, and what prompt templates may show of this turn."""


class Reply(NamedTuple):
    """What the policy answers."""

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
        """Answer the turn before. Raises EpisodeLost; the session can then not be used again."""
        ...


class TurnEnvironment(Protocol):
    """Where sessions come from."""

    def session(self) -> AbstractAsyncContextManager[TurnSession]:
        """Lease a session: waits for capacity on entry, gives it back on exit, whatever happens."""
        ...
