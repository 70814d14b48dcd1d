"""The grading actor: one comparison process that can be killed, behind a plain class.

Its method is synchronous on purpose: an actor grades one text at a time, and several actors grade
at the same time. rlsys.grading.compare defines which answers need the process; a CachedGrader in
the caller settles all others.
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
        """Start the process; the first hard comparison waits until it is ready.

        The process ends together with the actor.
        """
        self._max_characters = config.max_characters
        self._process = GradingProcess(config.timeout_s)
        self._process.start()

    def grade(self, requests: list[GradingRequest]) -> list[Verdict]:
        """Return one verdict per request, in order; a slow or failing one is INVALID."""
        return [self._grade(request) for request in requests]

    def _grade(self, request: GradingRequest) -> Verdict:
        answer = extract_answer(request.response)
        verdict = decide(answer, request.gold, max_characters=self._max_characters)
        if verdict is not None:
            return verdict
        assert answer is not None  # None is decided
        return compare_hard(self._process, answer, request.gold)
