"""One episode: questions answered in order from one token budget. No I/O, no OpenEnv."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from rlsys.config.economics import EconomicsConfig
from rlsys.environments.economics.budget import Budget
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
    """One answered question."""

    question: Question
    tokens: int
    """Tokens charged for the answer."""
    verdict: Verdict


class EconomicsEpisode:
    """The state of one episode.

    Invariant: `answers` and `ledger.charges` have one entry per answered question.
    """

    def __init__(
        self,
        config: EconomicsConfig,
        questions: Sequence[Question],
        budget: Budget,
        counter: TokenCounter,
        grade: Grade,
    ) -> None:
        """Begin an episode whose responses `counter` counts and `grade` grades."""
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
        """True once no further answer is accepted."""
        return self.stop_reason is not None

    @property
    def question(self) -> Question | None:
        """The next question, also after the budget ran out; None if all are answered."""
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
        """Tokens left, as shown to the client: not below 0 unless `allow_negative` is on."""
        left = self.ledger.remaining
        return left if self.config.allow_negative else max(0, left)

    def answer(
        self,
        response: str,
        *,
        grading_response: str | None = None,
        sampled_tokens: int | None = None,
    ) -> RewardParts:
        """Answer the current question and return the terms of its reward.

        The whole `response` is charged. If it begins with a thought, `grading_response` is its
        visible end, and only that is graded. A trusted client may send `sampled_tokens`, which is
        charged instead of a count of the text. Once the episode is done, all terms are 0.

        Raises RequestError for an answer that is refused. The episode is then unchanged.
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
        """Return the tokens of an answer and the text to grade; changes nothing.

        `offer` and `record` are the two halves of `answer`, for callers that grade asynchronously.
        """
        assert self.question is not None and not self.done
        tokens = self._tokens(response, sampled_tokens)
        graded = self._graded_text(response, tokens, grading_response)
        return tokens, GradingRequest(graded, self.question.gold)

    def record(self, tokens: int, verdict: Verdict) -> RewardParts:
        """Charge an offered answer of `tokens` tokens and return the terms of its reward."""
        assert self.question is not None and not self.done
        question = self.question
        ledger = self.ledger.charge(tokens, capped=self.config.mode == "hard")
        charged = ledger.charges[-1].charged
        parts = step_parts(
            verdict is Verdict.RIGHT,
            charged,
            self.budget.tokens,
            len(self.questions),
            spent_before=self._spent_for_reward(),
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
                f"response has {len(response)} characters, more than the {limit} that are "
                "accepted; send a shorter one"
            )
        if sampled_tokens is None:
            return self.counter.count(response)
        if not self.config.trusted:
            raise RequestError(
                "sampled_tokens needs an environment with trusted=true; leave it out to have the "
                "response counted"
            )
        if self.config.mode == "hard" and sampled_tokens > self.ledger.remaining:
            raise RequestError(
                f"sampled_tokens {sampled_tokens} exceeds the remaining {self.ledger.remaining}; "
                "sample at most the remaining tokens"
            )
        return sampled_tokens

    def _graded_text(self, response: str, tokens: int, grading_response: str | None) -> str:
        """The part of the response that is graded: after the thought and within the budget."""
        visible = response
        if grading_response is not None and grading_response.strip():
            visible = grading_response.rstrip()
            if not response.rstrip().endswith(visible):
                raise RequestError(
                    "grading_response must be the end of response, because all graded text is "
                    "charged; send the thought and the visible text together as response"
                )
        paid = self.ledger.remaining
        # The cap cuts the whole response, thought first, because that is the text that was charged.
        # What is left of the visible part begins where it began in the response. The compat rules
        # grade the full text although only a part of it is charged, as the original does.
        if self.config.mode == "hard" and self.config.rules == "default" and tokens > paid:
            start = len(response.rstrip()) - len(visible) if visible is not response else 0
            return self.counter.prefix(response, paid)[start:]
        return visible

    def _spent_for_reward(self) -> int:
        """Tokens spent so far, as the reward counts them."""
        # The original floors its one counter of remaining tokens at 0 when negative values are not
        # shown, so its reward never sees earlier overspending. The compat rules keep that defect.
        floored = self.config.rules == "compat" and not self.config.allow_negative
        return min(self.ledger.spent, self.ledger.budget) if floored else self.ledger.spent

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
                self._spent_for_reward(),
                self.budget.tokens,
                len(self.questions),
                rules=rules,
                coefficients=coefficients,
            ),
            unanswered=unanswered_penalty(
                self.questions_remaining, rules=rules, coefficients=coefficients
            ),
        )
