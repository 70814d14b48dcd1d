r"""Is an answer right? The grading policy, and its three ways to run.

Policy: equal values are equal (42.0 = 42, 1/2 = 0.5, x+1 = 1+x, 1,000 = 1000, \$12 = 12 cm = 12,
x=5 is 5; sets, tuples, intervals, percent and units as math-verify compares them). Wrong are:
- a missing or empty box, and an empty gold (the loaders refuse one);
- where the gold is a plain number: work left undone (`3+8-2` for 9), since else copying the
  question would be an answer, and a plain number that differs in any digit;
- where the gold is a word: any other word, upper and lower case aside;
- an answer refused unread (towers of powers, deep nesting, control characters: answers.is_refused).
INVALID, counted apart from WRONG: an answer over `max_characters`, an error, a time-out.

`decide` settles most answers in microseconds in the caller. What it leaves open goes to math-verify
in a killable process: `grade` and `is_correct` own two of them per Python process, an environment
actor asks a pool of GradingActors through a CachedGrader.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from queue import LifoQueue

from rlsys.config import GradingConfig
from rlsys.grading.answers import (
    Number,
    as_number,
    clean_gold,
    extract_answer,
    is_refused,
    is_unfinished,
    is_word,
    normalise,
)
from rlsys.grading.process import GradingProcess
from rlsys.types import GradingRequest, Verdict

__all__ = ["CachedGrader", "decide", "extract_answer", "grade", "is_correct", "self_test"]

MAX_CHARACTERS: int = GradingConfig().max_characters
LOCAL_TIMEOUT_S: float = GradingConfig().timeout_s
LOCAL_PROCESSES = 2


def is_correct(response: str, gold: str) -> bool:
    r"""Tell whether the boxed answer of `response` equals `gold`; safe in any thread.

    Example: is_correct(r"so it is \boxed{\frac12}", "0.5") is True
    """
    return grade(GradingRequest(response, gold)) is Verdict.RIGHT


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


@lru_cache(maxsize=1)
def _local_processes(pid: int) -> LifoQueue[GradingProcess]:
    """Idle grading processes of the Python process `pid`: a fork must not share its parent's."""
    idle: LifoQueue[GradingProcess] = LifoQueue()
    for _ in range(LOCAL_PROCESSES):
        idle.put(GradingProcess(LOCAL_TIMEOUT_S))
    return idle


def compare_hard(process: GradingProcess, answer: str, gold: str) -> Verdict:
    """Compare what `decide` left open. Spelling stays: math-verify knows units by `\\text{}`."""
    return process.compare(answer.replace("**", "^"), clean_gold(gold).replace("**", "^"))


class _Gold:
    """What is needed of a gold answer again and again."""

    __slots__ = ("is_refused", "is_word", "number", "text")

    def __init__(self, gold: str) -> None:
        self.text = normalise(clean_gold(gold))
        self.number = as_number(self.text)
        self.is_word = is_word(self.text)
        self.is_refused = is_refused(self.text)


_gold = lru_cache(maxsize=65536)(_Gold)


def decide(
    answer: str | None, gold: str, *, max_characters: int = MAX_CHARACTERS
) -> Verdict | None:
    """Return the verdict that needs no computer algebra, or None where math-verify must say.

    `answer` is what `extract_answer` returned, `gold` a gold answer in any spelling.
    """
    if answer is None:
        return Verdict.WRONG
    if len(answer) > max_characters:
        return Verdict.INVALID
    text, known = normalise(answer), _gold(gold)
    if not text or not known.text:
        return Verdict.WRONG
    if text == known.text:
        return Verdict.RIGHT
    if known.is_word:
        return _verdict(text.casefold() == known.text.casefold())
    if known.number is not None:
        number = as_number(text)
        if number is not None:
            return _same_number(number, known.number)
        if is_unfinished(text):
            return Verdict.WRONG
    # Only its own spelling equals a gold too large to evaluate.
    if known.is_refused or is_refused(text):
        return Verdict.WRONG
    return None


def _same_number(answer: Number, gold: Number) -> Verdict | None:
    if answer.value == gold.value:
        return Verdict.RIGHT
    # 0.333333 for 1/3: whether enough digits were given is math-verify's rule.
    rounded = answer.is_ratio != gold.is_ratio and (answer.has_point or gold.has_point)
    return None if rounded else Verdict.WRONG


def _verdict(right: bool) -> Verdict:
    return Verdict.RIGHT if right else Verdict.WRONG


class CachedGrader:
    """A Grader: `decide` in the caller, the rest asked of `grade_hard` once per (answer, gold)."""

    def __init__(
        self,
        grade_hard: Callable[[list[GradingRequest]], Awaitable[list[Verdict]]],
        *,
        max_characters: int = MAX_CHARACTERS,
        capacity: int = 65536,
    ) -> None:
        """`grade_hard` grades like a GradingActor; the newest `capacity` verdicts are kept."""
        self._grade_hard = grade_hard
        self._max_characters = max_characters
        self._capacity = capacity
        self._known: OrderedDict[tuple[str, str], Verdict] = OrderedDict()

    async def grade(self, requests: Sequence[GradingRequest]) -> list[Verdict]:
        """Return one verdict per request, in order."""
        verdicts: list[Verdict] = [Verdict.WRONG] * len(requests)
        asked: dict[tuple[str, str], list[int]] = {}
        for index, request in enumerate(requests):
            answer = extract_answer(request.response)
            verdict = decide(answer, request.gold, max_characters=self._max_characters)
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
    (r"\boxed{1} or \boxed{\{2, 1\}}", r"\{1,2\}", True),
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
