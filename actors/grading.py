"""The grading actor: one comparison process that can be killed, behind a plain class.

Its method is synchronous on purpose: an actor grades one text at a time, and several actors grade
at the same time. rlsys.grading.policy defines which answers need the process; a CachedGrader in
the caller settles all others.
"""

from __future__ import annotations

from zlib import crc32

from rlsys.config import GradingConfig, Policy
from rlsys.grading.answers import extract_answer
from rlsys.grading.compare import compare_hard, decide
from rlsys.grading.process import GradingProcess
from rlsys.types import GradingRequest, Verdict


class GradingActor:
    """Grades responses under a wall-clock limit each; holds one process and restarts it."""

    def __init__(self, config: GradingConfig) -> None:
        """Start the process; the first hard comparison waits until it is ready.

        The process ends together with the actor.
        """
        self._config = config
        self._process = GradingProcess(config.timeout_s)
        self._process.start()
        self._graded = 0
        self._invalid = 0
        self._audited = 0
        self._disagreed = 0

    def grade(self, requests: list[GradingRequest]) -> list[Verdict]:
        """Return one verdict per request, in order; a slow or failing one is INVALID."""
        verdicts = [self._grade(request) for request in requests]
        self._graded += len(verdicts)
        self._invalid += verdicts.count(Verdict.INVALID)
        return verdicts

    def counts(self) -> dict[str, int]:
        """Return totals since the start: graded, invalid, audited, disagreed, timeouts, restarts.

        `disagreed` counts audited answers on which the second policy gave another verdict.
        """
        return {
            "graded": self._graded,
            "invalid": self._invalid,
            "audited": self._audited,
            "disagreed": self._disagreed,
            "timeouts": self._process.timeouts,
            "restarts": self._process.restarts,
        }

    def _grade(self, request: GradingRequest) -> Verdict:
        policy = self._config.policy
        verdict = self._verdict(request, policy)
        if verdict is not Verdict.INVALID and self._is_audited(request):
            other = self._verdict(request, "math-verify" if policy == "rlsys" else "rlsys")
            self._audited += 1
            self._disagreed += other is not verdict
        return verdict

    def _verdict(self, request: GradingRequest, policy: Policy) -> Verdict:
        answer = extract_answer(request.response)
        verdict = decide(
            answer, request.gold, max_characters=self._config.max_characters, policy=policy
        )
        if verdict is not None:
            return verdict
        assert answer is not None  # None is decided
        return compare_hard(self._process, answer, request.gold, policy)

    def _is_audited(self, request: GradingRequest) -> bool:
        """Choose by a hash of the texts, so that a repeated run audits the same answers."""
        return crc32("\0".join(request).encode(errors="replace")) < self._config.audit_share * 2**32
