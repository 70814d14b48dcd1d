"""Problems and how they become prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveInt, model_validator

from rlsys.config.base import NonNegativeInt, Section


class ArithmeticData(Section):
    """Problems from rlsys' own generator of multi-step arithmetic."""

    source: Literal["arithmetic"] = "arithmetic"
    difficulty: tuple[PositiveInt, PositiveInt] = (6, 6)
    """Fewest and most numbers joined in one problem."""
    seed: NonNegativeInt = 0
    """Seed of the stream of problems; evaluation uses another one than training."""
    size: PositiveInt = 100_000
    """Problems in one epoch."""
    held_out: bool = False
    """Draw from the quarter of all problems kept for evaluation, which training never sees."""

    @model_validator(mode="after")
    def _ordered(self) -> ArithmeticData:
        low, high = self.difficulty
        if not 2 <= low <= high:
            raise ValueError(f"difficulty ({low}, {high}) must be 2 <= fewest <= most")
        return self


class FileData(Section):
    """Problems from JSONL (plain or gzip) or Parquet files, one row each."""

    source: Literal["file"] = "file"
    path: tuple[Path, ...] = Field(min_length=1)
    """Files, read in this order; .jsonl, .jsonl.gz, .json or .parquet."""
    problem_column: str = "problem"
    answer_column: str = "answer"
    id_column: str | None = None
    """Column with a unique id; None numbers the rows."""
    difficulty_column: str | None = None
    offset: NonNegativeInt = 0
    """Rows skipped at the start (a held-out set and a training set from one file)."""
    limit: PositiveInt | None = None
    """Rows used after the offset; None takes all."""


class HubData(Section):
    """Problems from a Hugging Face data set, through `datasets.load_dataset`."""

    source: Literal["hub"] = "hub"
    name: str
    subset: str | None = None
    split: str = "train"
    problem_column: str = "problem"
    answer_column: str = "answer"
    id_column: str | None = None
    difficulty_column: str | None = None
    offset: NonNegativeInt = 0
    limit: PositiveInt | None = None


Source = Annotated[ArithmeticData | FileData | HubData, Field(discriminator="source")]


class PromptConfig(Section):
    """How a problem becomes the prompt's token ids."""

    template: str = "{problem}"
    """Text of the user turn; must contain {problem}."""
    system: str | None = None
    """Text of a system turn, if any."""
    examples: tuple[tuple[str, str], ...] = ()
    """Worked (user, assistant) turns put before the question: few-shot prompting."""
    prefill: str = ""
    """Text appended after the generation prompt, for instance `<think>\\n`."""
    chat_template: bool = True
    """Render through the tokenizer's chat template; False joins the texts as they are."""
    max_tokens: PositiveInt = 1024
    """Longer prompts are dropped and counted."""

    @model_validator(mode="after")
    def _has_place(self) -> PromptConfig:
        if "{problem}" not in self.template:
            raise ValueError(f"prompt template {self.template!r} must contain {{problem}}")
        return self


class DataConfig(Section):
    """Training and held-out problems and their prompt."""

    train: Source = ArithmeticData()
    evaluation: Source = ArithmeticData(seed=1_000_003, size=256, held_out=True)
    prompt: PromptConfig = PromptConfig()
    shuffle: bool = True
    """Deterministic shuffle by the run's seed, anew every epoch."""
