"""Translate between turns and the fields of an OpenEnv environment. No network code is here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from rlsys.environments.turns import Reply, Turn
from rlsys.records import TurnRecord

Fields = Mapping[str, Any]
"""An observation, an action or the options of a reset: JSON values by field name."""


class Dialect(Protocol):
    """The field names and conventions of one kind of environment."""

    @property
    def reset_options(self) -> Fields:
        """Fields that are sent with every reset, in addition to the seed."""
        ...

    @property
    def observation_fields(self) -> tuple[str, ...]:
        """Fields that every observation must have."""
        ...

    @property
    def action_field(self) -> str:
        """The field of an action that contains the reply."""
        ...

    def refusal(self, first: Fields) -> str | None:
        """Return why this environment cannot be used, with the remedy; None if it can.

        `first` is the observation of a reset.
        """
        ...

    def read(self, before: Fields | None, after: Fields, reward: float, done: bool) -> Turn:
        """Return the turn of the observation `after`.

        `before` is the observation that the last reply answered; it is None at reset.
        """
        ...

    def write(self, before: Fields, reply: Reply) -> dict[str, object]:
        """Return the action for a reply to the observation `before`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDialect:
    """Any environment whose observation has a field to show and whose action has a text field.

    Only the visible part of a reply is sent. Prompt templates may show all numbers of an
    observation.

    Example, the scaffold of `openenv init`: TextDialect("echoed_message", "message").
    """

    observation_field: str
    """The field that the policy is shown. A value that is not text is shown as JSON."""
    action_field: str
    remaining_field: str | None = None
    """The field with the tokens that the policy may still sample; None without a shared budget."""
    reset_options: Fields = field(default_factory=dict)

    @property
    def observation_fields(self) -> tuple[str, ...]:
        """The shown field and, if there is one, the field of the budget."""
        named = (self.observation_field, self.remaining_field)
        return tuple(name for name in named if name is not None)

    def refusal(self, first: Fields) -> str | None:
        """Return None: this dialect has no rule that an environment could break."""
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

    def write(self, before: Fields, reply: Reply) -> dict[str, object]:
        """Return the visible part as the action."""
        return {self.action_field: reply.visible}
