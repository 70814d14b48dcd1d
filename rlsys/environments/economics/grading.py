"""Grading with a time limit that holds for every text, so that a server step stays fast."""

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
"""Limit of one comparison in a grading process."""
WAIT_LIMIT_S = 3.0
"""Limit of the wait for an idle grading process."""
RESTART_PAUSE_S = 1.0
PROCESSES = 2


class BoundedGrader:
    """Grades with rlsys.grading.compare within WAIT_LIMIT_S + COMPARE_LIMIT_S seconds.

    Most answers are decided in microseconds in this process. The others are compared in one of a
    few separate processes that can be killed. A killed process is restarted in the background; the
    others continue meanwhile. An answer that gets no idle process in time is INVALID. Thread-safe.
    """

    def __init__(self, processes: int = PROCESSES) -> None:
        """Use `processes` grading processes, which start on first use or with `warm_up`."""
        self._idle: Queue[GradingProcess] = Queue()  # first in, first out
        for _ in range(processes):
            self._idle.put(GradingProcess(COMPARE_LIMIT_S))
        self._processes = processes

    def __call__(self, request: GradingRequest) -> Verdict:
        """Return the verdict on one response."""
        answer = extract_answer(request.response)
        verdict = decide(answer, request.gold)
        if verdict is not None:
            return verdict
        assert answer is not None  # `decide` returns a verdict for None
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
        """Start all processes in the background and return at once."""
        for _ in range(self._processes):
            self._revive(self._idle.get())

    def _revive(self, process: GradingProcess) -> None:
        """Restart the process until it answers, then add it to the idle ones again."""

        def wait_until_ready() -> None:
            while _compared(process, "1", "1") is Verdict.INVALID:
                time.sleep(RESTART_PAUSE_S)
            self._idle.put(process)

        Thread(target=wait_until_ready, name="grading-revival", daemon=True).start()


def _compared(process: GradingProcess, answer: str, gold: str) -> Verdict:
    """The verdict of the process; INVALID if the process could not be started."""
    try:
        return compare_hard(process, answer, gold)
    except (RlsysError, OSError) as error:
        _log.error("some answers may not be graded: %s", error)
        return Verdict.INVALID


@lru_cache(maxsize=1)
def shared_grader() -> BoundedGrader:
    """Return the grader that all sessions of this process share."""
    return BoundedGrader()
