"""The economics environment as turns of a dialogue, inside the process that samples.

It trusts its caller: what is charged is the number of sampled ids, the end of turn and the thought
included.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final

from rlsys.config.economics import EconomicsConfig
from rlsys.environments.economics.budget import resolve_budget
from rlsys.environments.economics.counting import TokenCounter
from rlsys.environments.economics.episode import EconomicsEpisode
from rlsys.environments.economics.questions import load_corpus
from rlsys.environments.economics.sampler import sample_questions
from rlsys.environments.turns import Reply, Turn
from rlsys.types import Grader, GradingRequest, TurnRecord, Verdict

SHOWN: Final = (
    "remaining",
    "questions_remaining",
    "per_question",
    "number",
    "problems",
    "total_budget",
)
"""Names that a prompt template may show."""


class EconomicsTurns:
    """A TurnEnvironment without capacity: sessions are objects."""

    def __init__(self, config: EconomicsConfig, counter: TokenCounter, grader: Grader) -> None:
        """Play `config`; where it names no total_budget, questions are counted by `counter`."""
        # Replies are bounded in tokens here; the server's limit on characters must not end a run.
        own = {"trusted": True, "max_response_characters": sys.maxsize}
        self.config = config.model_copy(update=own)
        self._corpus = load_corpus(config.corpus)
        self._counter = counter
        self._grader = grader

    @asynccontextmanager
    async def session(self) -> AsyncIterator[_Session]:
        """Return a session at once."""
        yield _Session(self)

    def begin(self, seed: int) -> EconomicsEpisode:
        """Return the episode of a seed."""
        questions = sample_questions(self._corpus, self.config.problems, seed)
        budget = resolve_budget(
            self.config,
            [question.text for question in questions],
            total_budget=self.config.total_budget,
            tokenizer=self._counter,
        )
        return EconomicsEpisode(self.config, questions, budget, self._counter, _graded_elsewhere)

    async def grade(self, request: GradingRequest) -> Verdict:
        """Return the verdict on one answer."""
        (verdict,) = await self._grader.grade([request])
        return verdict


class _Session:
    """One episode after the other."""

    def __init__(self, environment: EconomicsTurns) -> None:
        self._environment = environment
        self._episode: EconomicsEpisode

    async def reset(self, seed: int) -> Turn:
        self._episode = self._environment.begin(seed)
        return self._turn(0.0, self._record())

    async def reply(self, reply: Reply) -> Turn:
        # Only the visible part is offered: a box inside the thought is no answer.
        tokens, request = self._episode.offer(reply.visible, sampled_tokens=reply.tokens)
        verdict = await self._environment.grade(request)
        parts = self._episode.record(tokens, verdict)
        answered = self._episode.answers[-1]
        record = replace(
            self._record(),
            verdict=verdict,
            charged=answered.tokens,
            type=answered.question.type,
            question=answered.question.text,
            end_reward=parts.end_reward,
        )
        return self._turn(parts.total, record)

    def _record(self) -> TurnRecord:
        episode = self._episode
        return TurnRecord(
            shown=shown_numbers(
                remaining=episode.remaining,
                left=episode.questions_remaining,
                answered=len(episode.answers),
                total_budget=episode.budget.tokens,
            ),
            problems=len(episode.questions),
            total_budget=episode.budget.tokens,
        )

    def _turn(self, reward: float, record: TurnRecord) -> Turn:
        episode = self._episode
        hard = episode.config.mode == "hard"
        return Turn(
            text="" if episode.question is None else episode.question.text,
            reward=reward,
            done=episode.done,
            remaining=episode.remaining if hard else None,
            unanswered=episode.questions_remaining,
            record=record,
        )


def shown_numbers(
    *, remaining: int, left: int, answered: int, total_budget: int | None
) -> dict[str, float]:
    """Numbers of a turn that a prompt template may show, by name (see SHOWN).

    Args:
        remaining: tokens of the budget.
        left: questions without an answer.
        answered: questions with an answer.
        total_budget: tokens of the whole episode; None where a server does not send it.
    """
    shown = {
        "remaining": float(remaining),
        "questions_remaining": float(left),
        "per_question": float(remaining // max(left, 1)),
        "number": float(answered + 1),
        "problems": float(answered + left),
    }
    return shown if total_budget is None else shown | {"total_budget": float(total_budget)}


def _graded_elsewhere(request: GradingRequest) -> Verdict:
    raise AssertionError("turns await the grader between offer and record")
