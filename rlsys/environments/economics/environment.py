"""The economics environment with the interface of OpenEnv: reset, step and state."""

from __future__ import annotations

import random
import secrets
from collections.abc import Mapping
from pathlib import Path
from uuid import uuid4

from openenv.core.env_server import Environment
from openenv.core.env_server.types import EnvironmentMetadata

from rlsys.config.base import MAX_SEED
from rlsys.config.economics import EconomicsConfig
from rlsys.environments.economics.budget import resolve_budget
from rlsys.environments.economics.counting import WORDS, TokenCounter, allowed_tokenizer
from rlsys.environments.economics.episode import EconomicsEpisode
from rlsys.environments.economics.errors import RequestError
from rlsys.environments.economics.grading import Grade, shared_grader
from rlsys.environments.economics.models import (
    EconomicsAction,
    EconomicsObservation,
    EconomicsState,
    HistoryEntry,
    ResetOptions,
    RewardTerms,
)
from rlsys.environments.economics.questions import load_corpus
from rlsys.environments.economics.rewards import RewardParts
from rlsys.environments.economics.sampler import sample_questions
from rlsys.types import Verdict

VERSION = "0.1.0"
SUMMARY_CHARACTERS = 80


class EconomicsEnvironment(
    Environment[EconomicsAction, EconomicsObservation, EconomicsState]  # type: ignore[misc]
):
    """One session, which plays one episode after the other. Not thread-safe.

    Sessions of one process share the corpus, the tokenizers and the grader.

    Example:
        environment = EconomicsEnvironment(EconomicsConfig(problems=4))
        observation = environment.reset(seed=7, total_budget=500)
        observation = environment.step(EconomicsAction(response=r"\\boxed{12}"))
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(
        self,
        config: EconomicsConfig | Mapping[str, object] | None = None,
        *,
        grade: Grade | None = None,
    ) -> None:
        """Use the settings in `config`; `grade` replaces the grader of the process.

        Raises pydantic.ValidationError for unknown settings and for values out of range.
        """
        super().__init__()
        self.config = EconomicsConfig.model_validate({} if config is None else config)
        self.episode: EconomicsEpisode | None = None
        self._corpus = load_corpus(self.config.corpus)
        self._grade = grade or shared_grader()
        self._seeds = random.Random(secrets.randbits(128))  # used by unseeded resets only
        self._seed = 0
        self._episode_id = ""

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        total_budget: int | None = None,
        tokenizer_name: str | None = None,
        **unknown: object,
    ) -> EconomicsObservation:
        """Begin an episode. Nothing carries over from an earlier one.

        Raises pydantic.ValidationError for values of the wrong type or range and for unknown
        names, RequestError for a tokenizer or budget that is refused, ModelError for a tokenizer
        that cannot be loaded. After an error the running episode continues unchanged.
        """
        options = ResetOptions.model_validate(
            {
                "seed": seed,
                "episode_id": episode_id,
                "total_budget": total_budget,
                "tokenizer_name": tokenizer_name,
                **unknown,
            }
        )
        # A seeded reset must not fix the seeds of later unseeded ones, as it did in the original.
        drawn = self._seeds.randint(0, MAX_SEED) if options.seed is None else options.seed
        questions = sample_questions(self._corpus, self.config.problems, drawn)
        counter, tokenizer = self._counters(options.tokenizer_name)
        budget = resolve_budget(
            self.config,
            [question.text for question in questions],
            total_budget=options.total_budget,
            tokenizer=tokenizer,
        )
        self.episode = EconomicsEpisode(self.config, questions, budget, counter, self._grade)
        self._seed = drawn
        self._episode_id = str(uuid4()) if options.episode_id is None else options.episode_id
        return self._observe(self.episode, RewardParts())

    def step(
        self, action: EconomicsAction, timeout_s: float | None = None, **_: object
    ) -> EconomicsObservation:
        """Answer the current question. A step after the end has reward 0 and changes nothing.

        OpenEnv passes `timeout_s`; it is ignored, because grading has its own time limit.
        Raises RequestError before the first reset and for an answer that is refused.
        """
        if self.episode is None:
            raise RequestError("there is no episode to step; send a reset first")
        options = action.metadata
        self._check_unit(self.episode, options.get("tokenizer_name", ""))
        parts = self.episode.answer(
            action.response,
            grading_response=options.get("grading_response"),
            sampled_tokens=options.get("sampled_tokens"),
        )
        return self._observe(self.episode, parts)

    @property
    def state(self) -> EconomicsState:
        """The state of the episode; all zero before the first reset."""
        episode = self.episode
        if episode is None:
            return EconomicsState()
        answered, spent = len(episode.answers), episode.ledger.spent
        return EconomicsState(
            episode_id=self._episode_id,
            step_count=answered,
            total_budget=episode.budget.tokens,
            spent_budget=spent,
            refused_tokens=sum(charge.refused for charge in episode.ledger.charges),
            questions_answered=answered,
            total_correct=episode.correct,
            invalid_answers=sum(a.verdict is Verdict.INVALID for a in episode.answers),
            current_accuracy=episode.correct / answered if answered else 0.0,
            budget_remaining_ratio=max(0.0, 1 - spent / episode.budget.tokens),
            budget_source=episode.budget.source,
            budget_mode=self.config.mode,
            counting_unit=episode.counter.unit,
            stop_reason=episode.stop_reason,
            seed=self._seed,
            data_source=self._corpus.source,
        )

    def get_metadata(self) -> EnvironmentMetadata:
        """Return what the server sends for `/metadata`."""
        return EnvironmentMetadata(
            name="economics",
            description=f"{self.config.problems} math problems share one token budget",
            readme_content=(Path(__file__).parent / "README.md").read_text(encoding="utf-8"),
            version=VERSION,
            author="rlsys",
        )

    def _counters(self, name: str | None) -> tuple[TokenCounter, TokenCounter | None]:
        """The counter of the responses, and the same counter again if the client named it."""
        if name is not None and name.strip():
            named = allowed_tokenizer(name, self.config.tokenizers)
            return named, named
        default = self.config.tokenizer
        return WORDS if default is None else allowed_tokenizer(default, (default,)), None

    def _check_unit(self, episode: EconomicsEpisode, name: str) -> None:
        if name.strip() and episode.counter.unit != f"tokens of {name}":
            raise RequestError(
                f"tokenizer_name {name!r} differs from the episode's unit, "
                f"{episode.counter.unit}; the unit is fixed at the reset, so send it there"
            )

    def _observe(self, episode: EconomicsEpisode, parts: RewardParts) -> EconomicsObservation:
        question, left = episode.question, episode.questions_remaining
        answered = len(episode.answers)
        kind = question.type if question is not None and self.config.reveal_type else None
        return EconomicsObservation(
            done=episode.done,
            reward=parts.total,
            question="" if question is None else question.text,
            remaining_budget=float(episode.remaining),
            questions_remaining=left,
            step_idx=answered,
            budget_per_remaining=episode.remaining / left if left else 0.0,
            accuracy_so_far=episode.correct / answered if answered else 0.0,
            history=[
                HistoryEntry(
                    tokens_used=entry.tokens,
                    was_correct=entry.verdict is Verdict.RIGHT,
                    question_summary=entry.question.text[:SUMMARY_CHARACTERS],
                )
                for entry in episode.answers
            ],
            total_budget=episode.budget.tokens,
            budget_source=episode.budget.source,
            budget_mode=self.config.mode,
            rules=self.config.rules,
            coefficients=self.config.coefficients,
            counting_unit=episode.counter.unit,
            trusted=self.config.trusted,
            min_tokens=self.config.min_tokens,
            num_questions=len(episode.questions),
            stop_reason=episode.stop_reason,
            seed=self._seed,
            data_source=self._corpus.source,
            problem_type=kind,
            reward_parts=RewardTerms(**parts._asdict()),
            metadata=self._metadata(episode, kind),
        )

    def _metadata(self, episode: EconomicsEpisode, kind: str | None) -> dict[str, object]:
        """Values that clients of the original environment read; the same keys at reset and step."""
        metadata: dict[str, object] = {
            "min_tokens": self.config.min_tokens,
            "max_tokens": self.config.max_tokens,
            "num_questions": len(episode.questions),
            "budget_ratio": self.config.budget_ratio,
            "total_budget": episode.budget.tokens,
            "budget_source": episode.budget.source,
            "budget_mode": self.config.mode,
        }
        return metadata if kind is None else metadata | {"problem_type": kind}
