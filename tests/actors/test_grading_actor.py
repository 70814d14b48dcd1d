"""The grading actor as a plain class; Ray wraps it without changing it."""

import threading

from actors.grading import GradingActor
from rlsys.config import GradingConfig
from rlsys.types import GradingRequest, Verdict


def test_verdicts_in_order() -> None:
    actor = GradingActor(GradingConfig(timeout_s=1.0, max_characters=100))
    verdicts = actor.grade(
        [
            GradingRequest(r"\boxed{x+1}", "1+x"),
            GradingRequest(r"\boxed{\sum_{k=1}^{10^9} k^k}", "5"),
            GradingRequest(r"\boxed{x+2}", "1+x"),
            GradingRequest(r"\boxed{" + "1" * 101 + "}", "5"),
            GradingRequest("no box", "5"),
        ]
    )
    right, wrong, invalid = Verdict.RIGHT, Verdict.WRONG, Verdict.INVALID
    assert verdicts == [right, invalid, wrong, invalid, wrong]


def test_works_off_the_main_thread() -> None:
    actor = GradingActor(GradingConfig())
    results: list[list[Verdict]] = []
    thread = threading.Thread(
        target=lambda: results.append(actor.grade([GradingRequest(r"\boxed{y+x}", "x+y")]))
    )
    thread.start()
    thread.join()
    assert results == [[Verdict.RIGHT]]
