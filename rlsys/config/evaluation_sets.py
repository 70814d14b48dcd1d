"""Settings of `rlsys eval sets`: which model, on which sets of problems, under which budgets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt, StringConstraints, model_validator

from rlsys.config.base import Fraction, NonNegativeFloat, NonNegativeInt, Section, check_budgets
from rlsys.config.data import ArithmeticData, FileData, HubData, PromptConfig
from rlsys.config.environments import ThoughtSection
from rlsys.config.grading import GradingConfig
from rlsys.config.models import EndpointSection, EnginesConfig, ModelConfig

AVERAGE = "average"
"""The name of the mean over sets in every table; no set may have it."""


class SampledSet(Section):
    """How often the problems of a set are answered."""

    samples: PositiveInt = 1
    """Thoughts per problem. More can be added later: a second start samples only those missing."""


class ArithmeticSet(ArithmeticData, SampledSet):
    """A set from rlsys' own generator."""

    held_out: bool = True
    """Draw from the quarter of all problems kept for evaluation, which training never sees."""
    size: PositiveInt = 256
    """Problems in the set."""


class FileSet(FileData, SampledSet):
    """A set from files."""


class HubSet(HubData, SampledSet):
    """A set from the Hugging Face hub."""

    split: str = "test"


EvaluationSet = Annotated[ArithmeticSet | FileSet | HubSet, Field(discriminator="source")]
SetName = Annotated[str, StringConstraints(pattern=r"^[\w-]+$")]


class SetsData(Section):
    """The sets and the prompt of their problems."""

    sets: Annotated[dict[SetName, EvaluationSet], Field(min_length=1)]
    """Every set by the name that it has in tables and results."""
    prompt: PromptConfig = PromptConfig()

    @model_validator(mode="after")
    def _names(self) -> SetsData:
        if AVERAGE in self.sets:
            raise ValueError(
                f"data.sets has a set called {AVERAGE!r}, which is the name of the mean over sets; "
                "give it another name"
            )
        return self


class CurveSection(ThoughtSection):
    """A thought up to the largest budget, cut at every budget, with one answer at every cut."""

    length_keys = "environment.thought_tokens, environment.budgets or environment.answer_tokens"

    type: Literal["anytime"] = "anytime"
    budgets: tuple[PositiveInt, ...] | None = None
    """Increasing numbers of thought tokens; null takes `budget_count` evenly spaced ones."""
    budget_count: PositiveInt = 1
    """Budgets up to `thought_tokens`, where `budgets` is null."""
    thought_tokens: PositiveInt | None = None
    """The largest budget, where `budgets` is null."""

    @model_validator(mode="after")
    def _grid(self) -> CurveSection:
        if self.budgets is not None:
            check_budgets(self.budgets, "environment.budgets")
            if self.thought_tokens is not None or self.budget_count != 1:
                raise ValueError(
                    f"environment.budgets {list(self.budgets)} is a whole list of budgets, beside "
                    "which environment.thought_tokens and budget_count have no place; leave them "
                    "out, or set environment.budgets to null"
                )
        elif self.thought_tokens is None:
            raise ValueError(
                "environment.thought_tokens is missing, the largest of the evenly spaced budgets; "
                "set it, or give environment.budgets as a list"
            )
        elif self.thought_tokens < self.budget_count:
            raise ValueError(
                f"environment.thought_tokens {self.thought_tokens} has no room for "
                f"{self.budget_count} different budgets; raise it, or lower "
                "environment.budget_count"
            )
        return self

    @property
    def grid(self) -> tuple[int, ...]:
        """All budgets: the list, or round(thought_tokens * j / n) for j = 1 to n budget_count."""
        if self.budgets is not None:
            return self.budgets
        assert self.thought_tokens is not None  # _grid
        count = self.budget_count
        return tuple(round(self.thought_tokens * j / count) for j in range(1, count + 1))

    @property
    def longest_thought(self) -> int:
        """The largest budget."""
        return self.grid[-1]


class EvaluatedEndpoint(EndpointSection):
    """An endpoint whose completions take and return token ids, as those of `vllm serve` do."""

    timeout_s: PositiveFloat = 600.0
    """Of one attempt."""
    retries: NonNegativeInt = 3
    """Further attempts, after growing pauses, where the network or the server fails."""
    concurrency: PositiveInt = 64
    """Requests in flight at once."""


class SetsConfig(Section):
    """Everything `rlsys eval sets` needs."""

    run_dir: Path = Path("runs/evaluation")
    """Folder of the results. A second start goes on in it."""
    seed: NonNegativeInt = 0
    model: ModelConfig = ModelConfig()
    """The model: a Hugging Face folder, a hub name, `tiny`, or the directory of a run. With
    `endpoint`, the model whose tokenizer the endpoint uses."""
    endpoint: EvaluatedEndpoint | None = None
    """A server that runs the model; null starts engines."""
    data: SetsData
    environment: CurveSection
    """How a thought ends, the budgets, and how an answer begins."""
    temperature: NonNegativeFloat = 0.6
    """0 is greedy."""
    top_p: Fraction = 1.0
    """Samples come from the most likely tokens that together have at least this probability."""
    top_k: PositiveInt | None = None
    """Samples come from this many most likely tokens; null from all."""
    generation: EnginesConfig = EnginesConfig()
    """The engines, where there is no endpoint."""
    grading: GradingConfig = GradingConfig()
    """`actors` is the number of grading processes; `audit_share` is not used."""
    baseline: Path | None = None
    """Folder of another evaluation, for instance of the starting model, whose tokens the ratios in
    the table compare with."""
