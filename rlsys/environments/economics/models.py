"""What travels between client and environment. Field names are those of the published original."""

from __future__ import annotations

from typing import Annotated

from openenv.core.env_server import Action, Observation, State
from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict  # pydantic needs this one below Python 3.12

from rlsys.config.economics import CoefficientSet, Mode, Rules
from rlsys.environments.economics.budget import BudgetSource
from rlsys.environments.economics.episode import StopReason

Fraction01 = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]

MAX_SEED = 2**53 - 1
"""The largest integer that every JSON reader keeps exact."""
MAX_BUDGET = 1_000_000_000


class ResetOptions(BaseModel):
    """What a client may send with a reset; types are not converted, unknown names refused."""

    model_config = ConfigDict(extra="forbid", strict=True)

    seed: Annotated[int, Field(ge=0, le=MAX_SEED)] | None = None
    """Decides the questions and their order; None draws one, which the observation reports."""
    episode_id: Annotated[str, Field(max_length=255)] | None = None
    total_budget: Annotated[int, Field(gt=0, le=MAX_BUDGET)] | None = None
    tokenizer_name: Annotated[str, Field(max_length=512)] | None = None


class AnswerMetadata(TypedDict, total=False):
    """What may come with a response."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)  # type: ignore[misc]

    tokenizer_name: Annotated[str, Field(max_length=512)]
    """Must be the tokenizer of the reset: the unit of a budget does not change within it."""
    grading_response: str
    """The visible end of the response, graded instead of the whole; the whole is charged."""
    sampled_tokens: Annotated[int, Field(ge=0, le=MAX_BUDGET)]
    """Charged instead of a count of the text, by an environment that trusts its client."""


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
    """The signed terms whose sum is the reward."""

    correctness: float = 0.0
    cost: float = 0.0
    efficiency: float = 0.0
    overspend: float = 0.0
    bonus: float = 0.0
    unanswered: float = 0.0


class EconomicsObservation(Observation):  # type: ignore[misc]
    """The current question and how the budget stands."""

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
    rules: Rules = Field(description="Of the reward.")
    coefficients: CoefficientSet = Field(description="Coefficient set of the reward.")
    counting_unit: str = Field(description="What a token is here: of which tokenizer, or words.")
    trusted: bool = Field(description="Whether sampled_tokens is charged instead of a count.")
    min_tokens: Count = Field(description="Hard mode ends the episode when less is left.")
    num_questions: Count
    stop_reason: StopReason | None = Field(default=None, description="Why the episode ended.")
    seed: Count = Field(description="Seed of the episode, sent or drawn.")
    data_source: str = Field(description="Where the questions come from.")
    problem_type: str | None = Field(default=None, description="Null unless types are revealed.")
    reward_parts: RewardTerms = Field(default_factory=RewardTerms)


class EconomicsState(State):  # type: ignore[misc]
    """The episode in numbers; all zero before the first reset."""

    total_budget: Count = 0
    spent_budget: Count = Field(default=0, description="Tokens charged, overspend included.")
    refused_tokens: Count = Field(default=0, description="Tokens past the hard cap, not charged.")
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
