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
    assert actor.counts() == {
        "graded": 5,
        "invalid": 2,
        "audited": 0,
        "disagreed": 0,
        "timeouts": 1,
        "restarts": 1,
    }


def test_works_off_the_main_thread() -> None:
    actor = GradingActor(GradingConfig())
    results: list[list[Verdict]] = []
    thread = threading.Thread(
        target=lambda: results.append(actor.grade([GradingRequest(r"\boxed{y+x}", "x+y")]))
    )
    thread.start()
    thread.join()
    assert results == [[Verdict.RIGHT]]


def test_a_second_policy_audits_and_only_counts() -> None:
    requests = [
        GradingRequest(r"\boxed{x+1}", "1+x"),
        GradingRequest(r"\boxed{M+1}", "m+1"),  # math-verify does not tell M from m
    ]
    counts = {}
    for share in (0.0, 1.0):
        actor = GradingActor(GradingConfig(audit_share=share))
        assert actor.grade(requests) == [Verdict.RIGHT, Verdict.WRONG]
        counts[share] = actor.counts()["audited"], actor.counts()["disagreed"]
    assert counts == {0.0: (0, 0), 1.0: (2, 1)}


def test_the_policy_is_the_one_of_the_configuration() -> None:
    request = GradingRequest(r"\boxed{2\sqrt{3}}", r"\sqrt{12}")
    verdicts = {}
    for policy in ("rlsys", "math-verify", "exact"):
        actor = GradingActor(GradingConfig(policy=policy))
        verdicts[policy] = actor.grade([request])
    right, wrong = [Verdict.RIGHT], [Verdict.WRONG]
    assert verdicts == {"rlsys": right, "math-verify": right, "exact": wrong}
