"""Settings of `rlsys eval sets`: which model, on which sets of problems, under which budgets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt, StringConstraints, model_validator

from rlsys.config.base import NonNegativeFloat, NonNegativeInt, Section, check_budgets
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
    budgets: PositiveInt | tuple[PositiveInt, ...] = 1
    """A number: so many evenly spaced budgets up to `thought_tokens`. A list: the budgets."""
    thought_tokens: PositiveInt | None = None
    """The largest budget, where `budgets` is a number; must be null where it is a list."""

    @model_validator(mode="after")
    def _grid(self) -> CurveSection:
        if isinstance(self.budgets, tuple):
            check_budgets(self.budgets, "environment.budgets")
            if self.thought_tokens is not None:
                raise ValueError(
                    f"environment.thought_tokens {self.thought_tokens} does not fit the list of "
                    "environment.budgets, whose last item is the largest budget; leave it out"
                )
        elif self.thought_tokens is None:
            raise ValueError(
                f"environment.budgets {self.budgets} is a number of evenly spaced budgets and "
                "needs the largest one; set environment.thought_tokens, or give a list of budgets"
            )
        elif self.thought_tokens < self.budgets:
            raise ValueError(
                f"environment.thought_tokens {self.thought_tokens} has no room for "
                f"{self.budgets} different budgets; raise it, or lower environment.budgets"
            )
        return self

    @property
    def grid(self) -> tuple[int, ...]:
        """All budgets, increasing: round(thought_tokens * j / n) for j = 1 to n, or the list."""
        if isinstance(self.budgets, tuple):
            return self.budgets
        assert self.thought_tokens is not None  # _grid
        count = self.budgets
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

    out: Path = Path("runs/evaluation")
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
    generation: EnginesConfig = EnginesConfig()
    """The engines, where there is no endpoint."""
    grading: GradingConfig = GradingConfig()
    """`actors` is the number of grading processes; `audit_share` is not used."""
    baseline: Path | None = None
    """Folder of another evaluation, for instance of the starting model, whose tokens the ratios in
    the table compare with."""
