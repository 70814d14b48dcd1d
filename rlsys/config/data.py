"""Problems and how they become prompts."""

from __future__ import annotations

from os import PathLike, fspath
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, PositiveInt, model_validator

from rlsys.config.base import NonNegativeInt, Section, expand_path

MOST_NUMBERS: Final = 6
"""Most given numbers of a Countdown problem."""
MOST_VALUE: Final = 999
"""Largest number of a Countdown problem: given, target, or result of a step."""


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


class CountdownShape(Section):
    """Which Countdown problems are drawn: given numbers and a target that they can reach."""

    difficulty: tuple[PositiveInt, PositiveInt] = (3, 4)
    """Fewest and most given numbers of a problem."""
    largest: Annotated[int, Field(ge=1, le=MOST_VALUE)] = 99
    """Given numbers are uniform over 1..largest."""
    targets: tuple[PositiveInt, PositiveInt] = (10, 100)
    """Smallest and largest target."""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        fewest, most = self.difficulty
        if not 2 <= fewest <= most <= MOST_NUMBERS:
            raise ValueError(
                f"difficulty ({fewest}, {most}) must be 2 <= fewest <= most <= {MOST_NUMBERS}"
            )
        low, high = self.targets
        if not low <= high <= MOST_VALUE:
            raise ValueError(f"targets ({low}, {high}) must be smallest <= largest <= {MOST_VALUE}")
        return self


class CountdownData(CountdownShape):
    """Problems of the numbers game Countdown, from rlsys' own generator.

    Their answers are graded by grading.policy `countdown`.
    """

    source: Literal["countdown"] = "countdown"
    seed: NonNegativeInt = 0
    """Seed of the stream of problems; evaluation uses another one than training."""
    size: PositiveInt = 20_000
    """Problems in one epoch."""
    held_out: bool = False
    """Draw from the quarter of all sets of numbers kept for evaluation, which training never
    sees."""


def _one_or_more(value: Any) -> Any:
    """Let one path stand without brackets, and take `pathlib` paths as text."""
    if isinstance(value, str | PathLike):
        return (fspath(value),)
    if isinstance(value, list | tuple):
        return tuple(fspath(item) if isinstance(item, PathLike) else item for item in value)
    return value


# Text and not pathlib.Path, which would turn `s3://bucket` into `s3:/bucket`.
Paths = Annotated[
    tuple[Annotated[str, AfterValidator(expand_path)], ...],
    BeforeValidator(_one_or_more),
    Field(min_length=1),
]

EarlierTurns = Literal["refuse", "drop"]


class RowColumns(Section):
    """Which columns of a row make a problem, and which rows are read.

    A dot reaches into nested columns: `reward_model.ground_truth`.
    """

    problem_column: str = "problem"
    """A text, or chat messages: then the last user turn is the problem."""
    answer_column: str = "answer"
    """A text, a number, a list of them, or chat messages: then the last assistant turn counts."""
    id_column: str | None = None
    """Column with a unique id; None numbers the rows."""
    difficulty_column: str | None = None
    """Column with a number; larger is harder."""
    tolerance_column: str | None = None
    """Column with the absolute error that a numeric answer may have, as OlympiadBench's `error`; a
    row without a value allows none."""
    answers: Literal["any", "all"] = "any"
    """A list of answers: `any` takes each as right by itself, `all` wants them all, in order."""
    earlier_turns: EarlierTurns = "refuse"
    """Chat messages before the last user turn, a system turn too: refuse the row or drop them."""
    skip_unanswered: bool = False
    """Skip and count rows whose answer is null, NaN or empty; False refuses the first one."""
    offset: NonNegativeInt = 0
    """Rows skipped at the start (a held-out set and a training set from one file)."""
    limit: PositiveInt | None = None
    """Rows read after the offset, unanswered ones too; None takes all."""


class FileData(RowColumns):
    """Problems from files, one row each: JSON, CSV, TSV, Parquet, Arrow, `save_to_disk` folders."""

    source: Literal["file"] = "file"
    path: Paths
    """Files, folders, globs or fsspec URLs, read in this order; each file may be gzipped."""


class HubData(RowColumns):
    """Problems from a Hugging Face data set, through `datasets.load_dataset`."""

    source: Literal["hub"] = "hub"
    name: str
    subset: str | None = None
    split: str = "train"


Source = Annotated[
    ArithmeticData | CountdownData | FileData | HubData, Field(discriminator="source")
]


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
