"""One episode: questions answered one after the other from one token budget. No I/O, no OpenEnv."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from rlsys.environments.economics.budget import Budget
from rlsys.environments.economics.config import EconomicsConfig
from rlsys.environments.economics.counting import TokenCounter
from rlsys.environments.economics.errors import RequestError
from rlsys.environments.economics.grading import Grade
from rlsys.environments.economics.ledger import Ledger
from rlsys.environments.economics.questions import Question
from rlsys.environments.economics.rewards import (
    RewardParts,
    coefficient_set,
    episode_bonus,
    step_parts,
    unanswered_penalty,
)
from rlsys.types import GradingRequest, Verdict

StopReason = Literal["answered", "exhausted"]


class Answered(NamedTuple):
    """What became of one question."""

    question: Question
    tokens: int
    """Charged."""
    verdict: Verdict


class EconomicsEpisode:
    """The state of one episode.

    Invariant: questions answered, charges in the ledger and entries of `answers` are as many.
    """

    def __init__(
        self,
        config: EconomicsConfig,
        questions: Sequence[Question],
        budget: Budget,
        counter: TokenCounter,
        grade: Grade,
    ) -> None:
        """Begin an episode; `counter` counts every response of it."""
        self.config = config
        self.questions = tuple(questions)
        self.budget = budget
        self.counter = counter
        self.ledger = Ledger(budget.tokens)
        self.answers: tuple[Answered, ...] = ()
        self.stop_reason: StopReason | None = None
        self._grade = grade

    @property
    def done(self) -> bool:
        """True once nothing more can be answered."""
        return self.stop_reason is not None

    @property
    def question(self) -> Question | None:
        """The question to answer next, or that was next when the budget ran out."""
        index = len(self.answers)
        return self.questions[index] if index < len(self.questions) else None

    @property
    def questions_remaining(self) -> int:
        """Questions not answered, the current one included."""
        return len(self.questions) - len(self.answers)

    @property
    def correct(self) -> int:
        """Right answers so far."""
        return sum(answered.verdict is Verdict.RIGHT for answered in self.answers)

    @property
    def remaining(self) -> int:
        """Tokens left as shown to the client: 0 when overspent, unless `allow_negative`."""
        left = self.ledger.remaining
        return left if self.config.allow_negative else max(0, left)

    def answer(
        self,
        response: str,
        *,
        grading_response: str | None = None,
        sampled_tokens: int | None = None,
    ) -> RewardParts:
        """Answer the current question and return the terms of the reward; nothing once done.

        `grading_response` is the visible end of `response`, where that begins with a thought; the
        whole response is charged. `sampled_tokens` is charged instead of the counted tokens, if
        the configuration trusts its client.

        Raises RequestError, and changes nothing, for an answer that cannot be taken.
        """
        if self.done:
            return RewardParts()
        tokens, request = self.offer(
            response, grading_response=grading_response, sampled_tokens=sampled_tokens
        )
        return self.record(tokens, self._grade(request))

    def offer(
        self,
        response: str,
        *,
        grading_response: str | None = None,
        sampled_tokens: int | None = None,
    ) -> tuple[int, GradingRequest]:
        """Return what an answer would be charged and what is to be graded; changes nothing.

        With `record` the two halves of `answer`, for those who wait for the grade in between.
        """
        assert self.question is not None and not self.done
        tokens = self._tokens(response, sampled_tokens)
        graded = self._graded_text(response, tokens, grading_response)
        return tokens, GradingRequest(graded, self.question.gold)

    def record(self, tokens: int, verdict: Verdict) -> RewardParts:
        """Charge the answer that was offered, take its verdict and return the reward's terms."""
        assert self.question is not None and not self.done
        question = self.question
        ledger = self.ledger.charge(tokens, capped=self.config.mode == "hard")
        charged = ledger.charges[-1].charged
        parts = step_parts(
            verdict is Verdict.RIGHT,
            charged,
            self.budget.tokens,
            len(self.questions),
            spent_before=self._billed(self.ledger),
            mode=self.config.mode,
            rules=self.config.rules,
            coefficients=coefficient_set(self.config.coefficients),
        )
        self.ledger = ledger
        self.answers = (*self.answers, Answered(question, charged, verdict))
        self.stop_reason = self._stopped()
        return self._final(parts) if self.done else parts

    def _tokens(self, response: str, sampled_tokens: int | None) -> int:
        limit = self.config.max_response_characters
        if len(response) > limit:
            raise RequestError(
                f"response has {len(response)} characters, more than the {limit} that are read; "
                "send a shorter one"
            )
        if sampled_tokens is None:
            return self.counter.count(response)
        if not self.config.trusted:
            raise RequestError(
                "sampled_tokens is taken only by an environment with trusted=true; leave it out, "
                "and the response is counted"
            )
        if self.config.mode == "hard" and sampled_tokens > self.ledger.remaining:
            raise RequestError(
                f"sampled_tokens {sampled_tokens} exceeds the remaining {self.ledger.remaining}; "
                "sample no more than remains"
            )
        return sampled_tokens

    def _graded_text(self, response: str, tokens: int, grading_response: str | None) -> str:
        """The part of the response that counts: paid for, and visible."""
        visible = response
        if grading_response is not None and grading_response.strip():
            visible = grading_response.rstrip()
            if not response.rstrip().endswith(visible):
                raise RequestError(
                    "grading_response must be the end of response, all of which is charged; send "
                    "the thought and the visible text together as response"
                )
        paid = self.ledger.remaining
        # Compat grades in full what it charges in part.
        if self.config.mode == "hard" and self.config.rules == "default" and tokens > paid:
            start = len(response.rstrip()) - len(visible) if visible is not response else 0
            return self.counter.prefix(response, paid)[start:]
        return visible

    def _billed(self, ledger: Ledger) -> int:
        """Tokens spent, as far as the reward knows: compat forgets what it does not show."""
        forgets = self.config.rules == "compat" and not self.config.allow_negative
        return min(ledger.spent, ledger.budget) if forgets else ledger.spent

    def _stopped(self) -> StopReason | None:
        if len(self.answers) == len(self.questions):
            return "answered"
        short = self.ledger.remaining < self.config.min_tokens
        return "exhausted" if short and self.config.mode == "hard" else None

    def _final(self, parts: RewardParts) -> RewardParts:
        rules, coefficients = self.config.rules, coefficient_set(self.config.coefficients)
        return parts._replace(
            bonus=episode_bonus(
                self.correct,
                self._billed(self.ledger),
                self.budget.tokens,
                len(self.questions),
                rules=rules,
                coefficients=coefficients,
            ),
            unanswered=unanswered_penalty(
                self.questions_remaining, rules=rules, coefficients=coefficients
            ),
        )
