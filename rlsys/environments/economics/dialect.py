"""Translate between turns and the fields of a served economics environment."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from rlsys.environments.economics.turns import shown_numbers
from rlsys.environments.openenv.dialects import Fields
from rlsys.environments.turns import Reply, Turn
from rlsys.types import TurnRecord, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class EconomicsDialect:
    """The dialect of economics servers; turns and records equal those of an episode in process.

    The field `trusted` of an observation tells whether the server charges the number that its
    client sends. If it does, the number of sampled ids is sent with the visible part. If it does
    not, the whole text is sent, the server counts it in a unit of its own, and the visible end of
    the text is named for grading. A reply whose thought never ended has no visible end, and the
    server grades its whole text.
    """

    reset_options: Fields = field(default_factory=dict)

    @property
    def observation_fields(self) -> tuple[str, ...]:
        """The fields of the published original, so that its servers can be used too.

        This needs the policy's tokenizer in `reset_options`; see `refusal`.
        """
        return ("question", "remaining_budget", "questions_remaining", "step_idx", "history")

    @property
    def action_field(self) -> str:
        """The response."""
        return "response"

    def refusal(self, first: Fields) -> str | None:
        """Refuse a server that counts in a unit of its own: its budget is not one of sampled ids.

        The published original does not name its unit. With `tokenizer_name` in the reset options,
        it is assumed to count tokens of that tokenizer.
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
        """Return the next question, and the outcome of the answer before."""
        remaining, left = int(after["remaining_budget"]), int(after["questions_remaining"])
        answered, total = int(after["step_idx"]), after.get("total_budget")
        record = TurnRecord(
            shown=shown_numbers(
                remaining=remaining, left=left, answered=answered, total_budget=total
            ),
            problems=answered + left,
            total_budget=None if total is None else int(total),
        )
        if before is not None and after["history"]:
            record = _answered(record, before, after)
        return Turn(
            text=after["question"],
            reward=reward,
            done=done,
            remaining=None if after.get("budget_mode") == "soft" else max(0, remaining),
            unanswered=left,
            record=record,
        )

    def write(self, before: Fields, reply: Reply) -> dict[str, object]:
        """Return the response, and what the server may know of it."""
        if before.get("trusted", False):
            return {"response": reply.visible, "metadata": {"sampled_tokens": reply.tokens}}
        visible_end = bool(reply.visible.strip()) and reply.text.endswith(reply.visible)
        metadata = {"grading_response": reply.visible} if visible_end else {}
        return {"response": reply.text, "metadata": metadata}


def _answered(record: TurnRecord, before: Fields, after: Fields) -> TurnRecord:
    """The record of a turn that follows an answer."""
    entry, parts = after["history"][-1], after.get("reward_parts")
    tokens, trusted = int(entry["tokens_used"]), before.get("trusted", False)
    return replace(
        record,
        verdict=Verdict.RIGHT if entry["was_correct"] else Verdict.WRONG,
        # A server that counts text itself does so in a unit of its own, not in sampled ids.
        charged=tokens if trusted else None,
        counted=None if trusted else tokens,
        question=before["question"],
        # The published original does not send the parts of a reward.
        end_reward=None if parts is None else float(parts["bonus"]) + float(parts["unanswered"]),
        # Sent only by a server that reveals types, which tell the difficulty.
        type=before.get("problem_type"),
    )
