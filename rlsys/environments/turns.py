"""Messages between a policy and an environment of several turns.

The environment may run in this process or behind a URL.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, Protocol

from rlsys.records import TurnRecord


class Turn(NamedTuple):
    """A message from the environment to the policy."""

    text: str
    """The user turn; it is not shown to the policy once the episode is done."""
    reward: float = 0.0
    """Reward of the previous reply; 0 at reset."""
    done: bool = False
    remaining: int | None = None
    """Tokens that the policy may still sample in this episode; None without a shared budget."""
    unanswered: int = 0
    """Questions left in the episode, this one included, if the environment gives a penalty for
    each question without an answer. 0 if it gives none."""
    record: TurnRecord = TurnRecord()
    """Facts about the previous reply, and values of this turn that prompt templates may show."""


class Reply(NamedTuple):
    """A message from the policy to the environment."""

    text: str
    """The decoded sampled ids, thought included."""
    visible: str
    """The part after the thought."""
    tokens: int
    """Sampled ids, EOS and thought included."""


class TurnSession(Protocol):
    """Plays episodes one after the other. Only one task may use a session at a time."""

    async def reset(self, seed: int) -> Turn:
        """Begin an episode; the same seed gives the same episode. Raises EpisodeLost."""
        ...

    async def reply(self, reply: Reply) -> Turn:
        """Reply to the previous turn. After EpisodeLost the session cannot be used again."""
        ...


class TurnEnvironment(Protocol):
    """Provides sessions."""

    def session(self) -> AbstractAsyncContextManager[TurnSession]:
        """Lease a session. Entry waits for a free one; exit always returns it."""
        ...
