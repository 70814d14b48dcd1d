"""Grading with a bound on the wait: what a step of a server may cost, whatever the text holds."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import lru_cache
from queue import Empty, Queue
from threading import Thread

from rlsys.errors import RlsysError
from rlsys.grading.compare import compare_hard, decide, extract_answer
from rlsys.grading.process import GradingProcess
from rlsys.types import GradingRequest, Verdict

_log = logging.getLogger(__name__)

Grade = Callable[[GradingRequest], Verdict]

COMPARE_LIMIT_S = 1.0
WAIT_LIMIT_S = 3.0
RESTART_PAUSE_S = 1.0
PROCESSES = 2


class BoundedGrader:
    """Grades by the policy of rlsys.grading.compare within WAIT_LIMIT_S + COMPARE_LIMIT_S seconds.

    Most answers are decided in microseconds here. The rest is compared in one of a few killable
    processes; one that had to be killed comes back once its successor is ready, and until then
    the others serve. An answer that finds none in time is INVALID. Safe in any thread.
    """

    def __init__(self, processes: int = PROCESSES) -> None:
        """Own `processes` grading processes, started on first use or by `warm_up`."""
        self._idle: Queue[GradingProcess] = Queue()  # first in, first out: the longest rested
        for _ in range(processes):
            self._idle.put(GradingProcess(COMPARE_LIMIT_S))
        self._processes = processes

    def __call__(self, request: GradingRequest) -> Verdict:
        """Return the verdict on one response."""
        answer = extract_answer(request.response)
        verdict = decide(answer, request.gold)
        if verdict is not None:
            return verdict
        assert answer is not None  # None is decided
        try:
            process = self._idle.get(timeout=WAIT_LIMIT_S)
        except Empty:
            return Verdict.INVALID
        verdict = _compared(process, answer, request.gold)
        if verdict is Verdict.INVALID:
            self._revive(process)
        else:
            self._idle.put(process)
        return verdict

    def warm_up(self) -> None:
        """Start all processes and return; each serves from when it is ready."""
        for _ in range(self._processes):
            self._revive(self._idle.get())

    def _revive(self, process: GradingProcess) -> None:
        """Give the process back once it answers again, however often it has to be started."""

        def wait_until_ready() -> None:
            while _compared(process, "1", "1") is Verdict.INVALID:
                time.sleep(RESTART_PAUSE_S)
            self._idle.put(process)

        Thread(target=wait_until_ready, name="grading-revival", daemon=True).start()


def _compared(process: GradingProcess, answer: str, gold: str) -> Verdict:
    """The verdict, INVALID from a process that could not be started."""
    try:
        return compare_hard(process, answer, gold)
    except (RlsysError, OSError) as error:
        _log.error("answers may stay ungraded: %s", error)
        return Verdict.INVALID


@lru_cache(maxsize=1)
def shared_grader() -> BoundedGrader:
    """The grader that all sessions of this process share."""
    return BoundedGrader()
