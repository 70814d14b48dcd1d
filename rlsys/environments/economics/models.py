"""Messages between client and environment, with the field names of the published original."""

from __future__ import annotations

from typing import Annotated

from openenv.core.env_server import Action, Observation, State
from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict  # pydantic needs this one below Python 3.12

from rlsys.config.base import MAX_SEED
from rlsys.config.economics import MAX_BUDGET, CoefficientSet, Mode, Rules
from rlsys.environments.economics.budget import BudgetSource
from rlsys.environments.economics.episode import StopReason
from rlsys.environments.economics.rewards import RewardParts

Fraction01 = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]


class ResetOptions(BaseModel):
    """Arguments of a reset. Values are not converted and unknown names are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)

    seed: Annotated[int, Field(ge=0, le=MAX_SEED)] | None = None
    """Determines the questions and their order. None draws a seed; the observation reports it."""
    episode_id: Annotated[str, Field(max_length=255)] | None = None
    total_budget: Annotated[int, Field(gt=0, le=MAX_BUDGET)] | None = None
    tokenizer_name: Annotated[str, Field(max_length=512)] | None = None


class AnswerMetadata(TypedDict, total=False):
    """Optional fields of an answer."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)  # type: ignore[misc]

    tokenizer_name: Annotated[str, Field(max_length=512)]
    """Must be the tokenizer of the reset, because the unit cannot change within an episode."""
    grading_response: str
    """The visible end of the response. Only this part is graded; the whole response is charged."""
    sampled_tokens: Annotated[int, Field(ge=0, le=MAX_BUDGET)]
    """Charged instead of a count of the text if the environment trusts its client."""


class EconomicsAction(Action):  # type: ignore[misc]
    r"""An answer to the current question; the last `\boxed{}` in it is graded."""

    response: str = Field(strict=True, description="Everything the policy wrote, thought included.")
    metadata: AnswerMetadata = Field(default_factory=AnswerMetadata)


class HistoryEntry(BaseModel):
    """One question answered earlier in the episode."""

    tokens_used: Count = Field(description="Tokens charged.")
    was_correct: bool
    question_summary: str = Field(description="First 80 characters of the question.")


class RewardTerms(BaseModel):
    """The signed terms of a reward; the reward is their sum (see RewardParts)."""

    correctness: float = 0.0
    cost: float = 0.0
    efficiency: float = 0.0
    overspend: float = 0.0
    bonus: float = 0.0
    unanswered: float = 0.0

    @property
    def end_reward(self) -> float:
        """The part of the reward that belongs to the whole episode: bonus + unanswered."""
        return RewardParts(**self.model_dump()).end_reward


class EconomicsObservation(Observation):  # type: ignore[misc]
    """The current question, the remaining budget and the rules of the episode."""

    question: str = Field(description="Empty once all are answered.")
    remaining_budget: float = Field(description="Tokens left; negative when overspent (soft mode).")
    questions_remaining: Count = Field(description="The current one included.")
    step_idx: Count = Field(description="Questions answered so far.")
    budget_per_remaining: float = Field(description="Tokens left per question left, 0 at the end.")
    accuracy_so_far: Fraction01 = Field(description="Right answers / questions answered.")
    history: list[HistoryEntry] = Field(default_factory=list)
    total_budget: Count = Field(description="Tokens of the whole episode.")
    budget_source: BudgetSource
    budget_mode: Mode
    rules: Rules = Field(description="Rules of the reward.")
    coefficients: CoefficientSet = Field(description="Coefficient set of the reward.")
    counting_unit: str = Field(
        description="Unit of all token counts: a tokenizer, or an estimate from words."
    )
    trusted: bool = Field(
        description="True if sampled_tokens is charged instead of a count of the text."
    )
    min_tokens: Count = Field(description="Hard mode ends the episode when fewer tokens remain.")
    num_questions: Count
    stop_reason: StopReason | None = Field(default=None, description="Why the episode ended.")
    seed: Count = Field(description="Seed of the episode, sent or drawn.")
    data_source: str = Field(description="Source of the questions.")
    problem_type: str | None = Field(
        default=None, description="Null unless the environment reveals types."
    )
    reward_parts: RewardTerms = Field(default_factory=RewardTerms)


class EconomicsState(State):  # type: ignore[misc]
    """The state of the episode; all zero before the first reset."""

    total_budget: Count = 0
    spent_budget: Count = Field(default=0, description="Tokens charged, overspend included.")
    refused_tokens: Count = Field(
        default=0, description="Tokens beyond the budget in hard mode, not charged."
    )
    questions_answered: Count = 0
    total_correct: Count = 0
    invalid_answers: Count = Field(default=0, description="Answers that could not be graded.")
    current_accuracy: Fraction01 = 0.0
    budget_remaining_ratio: Fraction01 = 1.0
    budget_source: BudgetSource | None = None
    budget_mode: Mode | None = None
    counting_unit: str | None = None
    stop_reason: StopReason | None = None
    seed: int | None = None
    data_source: str | None = None
