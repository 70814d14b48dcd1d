"""The grading actor: one killable comparison process behind a plain class.

Its methods are synchronous on purpose: an actor grades one text at a time, and more actors grade
more. rlsys.grading.compare states the policy; a CachedGrader in the caller settles the easy
answers.
"""

from __future__ import annotations

from rlsys.config import GradingConfig
from rlsys.grading.answers import extract_answer
from rlsys.grading.compare import compare_hard, decide
from rlsys.grading.process import GradingProcess
from rlsys.types import GradingRequest, Verdict


class GradingActor:
    """Grades responses under a wall-clock limit each; holds one process and restarts it."""

    def __init__(self, config: GradingConfig) -> None:
        """Start the process; the first hard comparison waits until it is ready."""
        self._max_characters = config.max_characters
        self._process = GradingProcess(config.timeout_s)
        self._process.start()
        self._graded = 0
        self._invalid = 0

    def grade(self, requests: list[GradingRequest]) -> list[Verdict]:
        """Return one verdict per request, in order; a slow or failing one is INVALID."""
        verdicts = [self._grade(request) for request in requests]
        self._graded += len(verdicts)
        self._invalid += verdicts.count(Verdict.INVALID)
        return verdicts

    def counts(self) -> dict[str, int]:
        """Return totals since the start: graded, invalid, timeouts, restarts."""
        return {
            "graded": self._graded,
            "invalid": self._invalid,
            "timeouts": self._process.timeouts,
            "restarts": self._process.restarts,
        }

    def close(self) -> None:
        """End the process. It also ends when this actor's own process does."""
        self._process.close()

    def _grade(self, request: GradingRequest) -> Verdict:
        answer = extract_answer(request.response)
        verdict = decide(answer, request.gold, max_characters=self._max_characters)
        if verdict is not None:
            return verdict
        assert answer is not None  # None is decided
        return compare_hard(self._process, answer, request.gold)
