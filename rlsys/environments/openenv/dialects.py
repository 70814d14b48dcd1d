"""How the fields of an OpenEnv environment carry turns. Knows nothing of sockets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from rlsys.environments.turns import Reply, Turn
from rlsys.types import Verdict

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

    def objection(self, first: Fields) -> str | None:
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

    Only the visible part of a reply is sent. All numbers of an observation become facts.

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

    def objection(self, first: Fields) -> str | None:
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
            facts={name: float(v) for name, v in after.items() if isinstance(v, int | float)},
        )

    def write(self, before: Fields, reply: Reply) -> dict[str, Any]:
        """Return the visible part as the action."""
        return {self.action_field: reply.visible}


@dataclass(frozen=True, slots=True, kw_only=True)
class EconomicsDialect:
    """The economics environment; turns and facts are those of an episode in this process.

    An observation says whether the server charges what its client counts (`trusted`). If so, the
    number of sampled ids is sent with the visible part. Else the server counts the whole text, in a
    unit of its own, and is told which end of it is visible; of a thought that never ended nothing
    is, and the whole text is graded.
    """

    reset_options: Fields = field(default_factory=dict)

    @property
    def observation_fields(self) -> tuple[str, ...]:
        """Those of the published original, so that its servers can be played too.

        With the policy's tokenizer in `reset_options`; see `objection`.
        """
        return ("question", "remaining_budget", "questions_remaining", "step_idx", "history")

    @property
    def action_field(self) -> str:
        """The response."""
        return "response"

    def objection(self, first: Fields) -> str | None:
        """Where a server counts in a unit of its own, no budget is one of sampled ids.

        The published original does not say in what it counts, and is believed.
        """
        name = self.reset_options.get("tokenizer_name")
        wanted, unit = f"tokens of {name}", first.get("counting_unit")
        if first.get("trusted", False) or (name and unit in (wanted, None)):
            return None
        unit = unit or "a unit of its own"
        return (
            f"it counts text itself (in {unit}), so no budget is charged for sampled ids; start it "
            "with `rlsys serve-env environment.trusted=true`, or set environment.tokenizer_name to "
            "the policy's tokenizer, which comes close"
        )

    def read(self, before: Fields | None, after: Fields, reward: float, done: bool) -> Turn:
        """Return the next question, and what became of the answer before."""
        remaining, left = int(after["remaining_budget"]), int(after["questions_remaining"])
        answered = int(after["step_idx"])
        facts: dict[str, float | str] = {
            "remaining": float(remaining),
            "questions_remaining": float(left),
            "per_question": float(remaining // max(left, 1)),
            "number": float(answered + 1),
            "problems": float(answered + left),
        }
        if "total_budget" in after:
            facts["total_budget"] = float(after["total_budget"])
        if before is not None and after["history"]:
            facts |= _answer_facts(before, after)
        return Turn(
            text=after["question"],
            reward=reward,
            done=done,
            remaining=None if after.get("budget_mode") == "soft" else max(0, remaining),
            facts=facts,
        )

    def write(self, before: Fields, reply: Reply) -> dict[str, Any]:
        """Return the response, and what the server may know of it."""
        if before.get("trusted", False):
            return {"response": reply.visible, "metadata": {"sampled_tokens": reply.tokens}}
        visible_end = bool(reply.visible.strip()) and reply.text.endswith(reply.visible)
        metadata = {"grading_response": reply.visible} if visible_end else {}
        return {"response": reply.text, "metadata": metadata}


def _answer_facts(before: Fields, after: Fields) -> dict[str, float | str]:
    entry = after["history"][-1]
    facts: dict[str, float | str] = {
        "verdict": float(Verdict.RIGHT if entry["was_correct"] else Verdict.WRONG),
        # What a server counts itself is in a unit of its own, and adds up to no sampled ids.
        "charged" if before.get("trusted", False) else "counted": float(entry["tokens_used"]),
        "answered_question": before["question"],
    }
    # Not sent by the published original.
    if "reward_parts" in after:
        parts = after["reward_parts"]
        facts["end_reward"] = float(parts["bonus"]) + float(parts["unanswered"])
    # Sent only by a server that reveals types, which tell the difficulty.
    if before.get("problem_type") is not None:
        facts["type"] = before["problem_type"]
    return facts
