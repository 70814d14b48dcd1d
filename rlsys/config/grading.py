"""How answers are compared, and by what."""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveFloat, PositiveInt, model_validator

from rlsys.config.base import Section, Share

Policy = Literal["rlsys", "math-verify", "exact", "countdown"]


class GradingConfig(Section):
    """The pool of killable processes that compares answers."""

    policy: Policy = "rlsys"
    """rlsys: the rules of docs/grading.md. math-verify: that library alone. exact: the same
    spelling or the same number, without computer algebra. countdown: an expression that uses the
    given numbers once each and equals the target."""
    actors: PositiveInt = 1
    timeout_s: PositiveFloat = 5.0
    """Wall-clock limit of one comparison; a slower one is killed and INVALID."""
    max_characters: PositiveInt = 1024
    """Longer answers are INVALID."""
    audit_share: Share = 0.0
    """Share of the comparisons in grading actors that a second policy grades as well: math-verify
    audits rlsys, rlsys audits the others. Disagreement is only counted."""

    @model_validator(mode="after")
    def _can_be_audited(self) -> GradingConfig:
        if self.policy == "countdown" and self.audit_share:
            raise ValueError(
                "audit_share needs a second policy for the same answers, and policy 'countdown' "
                "has none; set audit_share to 0"
            )
        return self
