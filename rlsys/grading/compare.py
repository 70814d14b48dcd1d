r"""Grading of whole responses: what is decided at once, and who is asked about the rest.

`decide` settles most answers in microseconds in the caller, by the rules of rlsys.grading.policy.
What it leaves open goes to computer algebra in a killable process: `grade` and `is_correct` own two
of them per Python process, an environment actor asks a pool of GradingActors through a
CachedGrader. INVALID, counted apart from WRONG, is an answer over `max_characters`, an error or a
time-out.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from queue import LifoQueue

from rlsys.config import GradingConfig, Policy
from rlsys.grading.answers import extract_answer
from rlsys.grading.countdown import solves
from rlsys.grading.golds import gold_text, read_gold
from rlsys.grading.policy import judge, judge_exactly
from rlsys.grading.process import GradingProcess
from rlsys.grading.refusals import is_refused
from rlsys.grading.spelling import normalise
from rlsys.types import GradingRequest, Verdict

__all__ = ["CachedGrader", "decide", "extract_answer", "grade", "is_correct", "self_test"]

MAX_CHARACTERS: int = GradingConfig().max_characters
LOCAL_TIMEOUT_S: float = GradingConfig().timeout_s
LOCAL_PROCESSES = 2


def is_correct(response: str, gold: str | Sequence[str]) -> bool:
    r"""Tell whether the boxed answer of `response` equals `gold`; safe in any thread.

    `gold` is an answer as data sets write it (`#### 2,125`, `$\frac12$`), or several accepted ones.

    Example: is_correct(r"so it is \boxed{\frac12}", "0.5") is True
    """
    return grade(GradingRequest(response, gold_text(gold))) is Verdict.RIGHT


def grade(request: GradingRequest) -> Verdict:
    """Grade one response here: `decide`, else one of this process' own grading processes."""
    answer = extract_answer(request.response)
    verdict = decide(answer, request.gold)
    if verdict is not None:
        return verdict
    assert answer is not None  # None is decided
    idle = _local_processes(os.getpid())
    process = idle.get()
    try:
        return compare_hard(process, answer, request.gold)
    finally:
        idle.put(process)


def start_process() -> None:
    """Start one of the grading processes of `grade`; does not wait for its slow imports."""
    idle = _local_processes(os.getpid())
    process = idle.get()
    if process.pid is None:
        process.start()
    idle.put(process)


@lru_cache(maxsize=1)
def _local_processes(pid: int) -> LifoQueue[GradingProcess]:
    """Idle grading processes of the Python process `pid`: a fork must not share its parent's."""
    idle: LifoQueue[GradingProcess] = LifoQueue()
    for _ in range(LOCAL_PROCESSES):
        idle.put(GradingProcess(LOCAL_TIMEOUT_S))
    return idle


def compare_hard(
    process: GradingProcess, answer: str, gold: str, policy: Policy = "rlsys"
) -> Verdict:
    """Compare what `decide` left open."""
    return process.compare(answer, gold, policy)


_gold = lru_cache(maxsize=65_536)(read_gold)


def decide(
    answer: str | None,
    gold: str,
    *,
    max_characters: int = MAX_CHARACTERS,
    policy: Policy = "rlsys",
) -> Verdict | None:
    """Return the verdict that needs no computer algebra, or None where the process must say.

    `answer` is what `extract_answer` returned, `gold` a gold answer in any spelling.
    """
    if answer is None:
        return Verdict.WRONG
    if len(answer) > max_characters:
        return Verdict.INVALID
    accepted = _gold(gold)
    if not answer.strip() or not accepted.answers:
        return Verdict.WRONG
    match policy:
        case "rlsys":
            right = judge(answer, accepted)
        case "exact":
            right = judge_exactly(answer, accepted)
        case "countdown":
            right = any(solves(answer, text) for text in accepted.answers)
        case "math-verify":
            refused = any(is_refused(normalise(text)) for text in (answer, *accepted.answers))
            right = False if refused else None
    return None if right is None else Verdict.RIGHT if right else Verdict.WRONG


class CachedGrader:
    """A Grader: `decide` in the caller, the rest asked of `grade_hard` once per (answer, gold)."""

    def __init__(
        self,
        grade_hard: Callable[[list[GradingRequest]], Awaitable[list[Verdict]]],
        *,
        max_characters: int = MAX_CHARACTERS,
        policy: Policy = "rlsys",
        capacity: int = 65536,
    ) -> None:
        """`grade_hard` grades like a GradingActor; the newest `capacity` verdicts are kept."""
        self._grade_hard = grade_hard
        self._max_characters = max_characters
        self._policy: Policy = policy
        self._capacity = capacity
        self._known: OrderedDict[tuple[str, str], Verdict] = OrderedDict()

    async def grade(self, requests: Sequence[GradingRequest]) -> list[Verdict]:
        """Return one verdict per request, in order."""
        verdicts: list[Verdict] = [Verdict.WRONG] * len(requests)
        asked: dict[tuple[str, str], list[int]] = {}
        for index, request in enumerate(requests):
            answer = extract_answer(request.response)
            verdict = decide(
                answer,
                request.gold,
                max_characters=self._max_characters,
                policy=self._policy,
            )
            if verdict is None:
                assert answer is not None  # None is decided
                verdict = self._known.get((answer, request.gold))
            if verdict is not None:
                verdicts[index] = verdict
            elif answer is not None:
                asked.setdefault((answer, request.gold), []).append(index)
        if asked:
            # Only the box travels, not the text around it.
            hard = [GradingRequest(f"\\boxed{{{answer}}}", gold) for answer, gold in asked]
            for key, verdict in zip(asked, await self._grade_hard(hard), strict=True):
                self._remember(key, verdict)
                for index in asked[key]:
                    verdicts[index] = verdict
        return verdicts

    def _remember(self, key: tuple[str, str], verdict: Verdict) -> None:
        self._known[key] = verdict
        if len(self._known) > self._capacity:
            self._known.popitem(last=False)


_SELF_TEST = (
    (r"\boxed{42.0}", "42", True),
    (r"**Final Answer**" + "\n" + r"\boxed{\frac{1}{2}}", "0.5", True),
    (r"\boxed{x+1}", "1+x", True),
    (r"\boxed{12\text{ cm}}", "12", True),
    (r"\boxed{2 \sqrt{3}}", r"\sqrt{12}", True),
    (r"first \boxed{1}, now \boxed{\{2, 1\}}", r"\{1,2\}", True),
    (r"\boxed{\frac{1}{7}}", r"\frac{1}{2}", False),
    (r"\boxed{(1, 2]}", "[1,2]", False),
    (r"\boxed{9**9**9}", "5", False),
    ("the answer is 7", "7", False),
)


def self_test() -> list[str]:
    """Grade ten fixed rows through the real path; return a sentence per row that came out wrong."""
    return [
        f"{response!r} against {gold!r} must be {'right' if right else 'wrong'}"
        for response, gold, right in _SELF_TEST
        if is_correct(response, gold) != right
    ]
