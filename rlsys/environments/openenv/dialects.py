"""How the fields of an OpenEnv environment carry turns. Knows nothing of sockets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from rlsys.environments.turns import Reply, Turn
from rlsys.records import TurnRecord

Fields = Mapping[str, Any]
"""An observation, an action or the options of a reset, by JSON name."""


class Dialect(Protocol):
    """What one kind of environment calls things."""

    @property
    def reset_options(self) -> Fields:
        """Sent with every reset, beside the seed."""
        ...

    @property
    def observation_fields(self) -> tuple[str, ...]:
        """Fields without which an observation cannot be read."""
        ...

    @property
    def action_field(self) -> str:
        """Field of an action that holds the reply."""
        ...

    def refusal(self, first: Fields) -> str | None:
        """Why an environment that begins with `first` must not be played, with the remedy."""
        ...

    def read(self, before: Fields | None, after: Fields, reward: float, done: bool) -> Turn:
        """Return what `after` says: the answer to the reply to `before`, which is None at reset."""
        ...

    def write(self, before: Fields, reply: Reply) -> dict[str, Any]:
        """Return the action that gives the reply to `before`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDialect:
    """Any environment that shows one field and takes one field of text.

    Only the visible part of a reply is sent. Prompt templates may show all numbers of an
    observation.

    Example, the scaffold of `openenv init`: TextDialect("echoed_message", "message").
    """

    observation_field: str
    """What the policy is shown; what is not text, as JSON."""
    action_field: str
    remaining_field: str | None = None
    """Tokens that the policy may still sample, where the environment has a shared budget."""
    reset_options: Fields = field(default_factory=dict)

    @property
    def observation_fields(self) -> tuple[str, ...]:
        """The text and, where there is one, the budget."""
        named = (self.observation_field, self.remaining_field)
        return tuple(name for name in named if name is not None)

    def refusal(self, first: Fields) -> str | None:
        """None: nothing is known of it."""
        return None

    def read(self, before: Fields | None, after: Fields, reward: float, done: bool) -> Turn:
        """Return the text as it is."""
        shown = after[self.observation_field]
        left = None if self.remaining_field is None else max(0, int(after[self.remaining_field]))
        return Turn(
            text=shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False),
            reward=reward,
            done=done,
            remaining=left,
            record=TurnRecord(
                shown={name: float(v) for name, v in after.items() if isinstance(v, int | float)}
            ),
        )

    def write(self, before: Fields, reply: Reply) -> dict[str, Any]:
        """Return the visible part as the action."""
        return {self.action_field: reply.visible}
