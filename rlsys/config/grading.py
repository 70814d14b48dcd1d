"""How answers are compared, and by what."""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveFloat, PositiveInt

from rlsys.config.base import Section, Share

Policy = Literal["rlsys", "math-verify", "exact"]


class GradingConfig(Section):
    """The pool of killable processes that compares answers."""

    policy: Policy = "rlsys"
    """rlsys: the rules of docs/grading.md. math-verify: that library alone. exact: the same
    spelling or the same number, without computer algebra."""
    actors: PositiveInt = 1
    timeout_s: PositiveFloat = 5.0
    """Wall-clock limit of one comparison; a slower one is killed and INVALID."""
    max_characters: PositiveInt = 1024
    """Longer answers are INVALID."""
    audit_share: Share = 0.0
    """Share of the comparisons in grading actors that a second policy grades as well: math-verify
    audits rlsys, rlsys audits the others. Disagreement is only counted."""
