"""Every setting of the economics environment and of its server, with its default."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from rlsys.config.base import NonNegativeInt, Section

Mode = Literal["hard", "soft"]
Rules = Literal["default", "compat"]
CoefficientSet = Literal["D", "D2"]

DEFAULT_MODE: Final[Mode] = "hard"
DEFAULT_RULES: Final[Rules] = "default"
DEFAULT_COEFFICIENTS: Final[CoefficientSet] = "D"

MAX_BUDGET: Final = 1_000_000_000
"""Largest number of tokens that a client may send."""

METAMATH_TYPES: Final = tuple(
    f"{family}_{kind}"
    for family in ("MATH", "GSM")
    for kind in ("AnsAug", "Rephrased", "SV", "FOBAR")
)
NUMINA_TYPE: Final = "NuminaMath_TIR"


class ArithmeticCorpus(Section):
    """Generated sums of one-digit numbers. Needs no network."""

    source: Literal["arithmetic"] = "arithmetic"
    terms: tuple[PositiveInt, PositiveInt] = (2, 10)
    """Fewest and most numbers in a sum; each length is one question type."""
    per_type: PositiveInt = 100
    """Questions of each type. Only 162 different sums of two numbers exist."""
    seed: NonNegativeInt = 0
    held_out: bool = False
    """Take the quarter of all sums that is reserved for evaluation and never used in training."""

    @model_validator(mode="after")
    def _ordered(self) -> ArithmeticCorpus:
        low, high = self.terms
        if not 2 <= low <= high:
            raise ValueError(f"terms ({low}, {high}) must satisfy 2 <= fewest <= most")
        return self


class Table(Section):
    """One data set of questions with answers, and the meaning of its columns."""

    name: str
    """Name of a Hugging Face data set, or any label if `path` is given."""
    path: tuple[Path, ...] = ()
    """Local JSONL, JSON or Parquet files, read instead of the hub."""
    subset: str | None = None
    split: str = "train"
    question: str
    """Column with the question."""
    solution: str | None = None
    """Column with the worked solution, which contains the gold answer."""
    answer: str | None = None
    """Column with only the gold answer; give either this or `solution`."""
    type: str | None = None
    """Column with the question type; rows whose type is not in `types` are dropped."""
    types: tuple[str, ...] = Field(min_length=1)
    """Types to read. Without a `type` column: the one type of all rows."""
    window: tuple[NonNegativeInt, PositiveInt] = (0, 500)
    """Rows [first, end) to read; `prod: true` reads all rows."""

    @model_validator(mode="after")
    def _consistent(self) -> Table:
        if (self.solution is None) == (self.answer is None):
            raise ValueError(
                f"{self.name}: solution is {self.solution!r} and answer is {self.answer!r}; name "
                "one of them: the column with worked solutions or the one with final answers"
            )
        if self.type is None and len(self.types) != 1:
            raise ValueError(
                f"{self.name}: types has {len(self.types)} entries, but without a type column all "
                "rows have one type; name the type column or a single type"
            )
        if self.window[0] >= self.window[1]:
            raise ValueError(f"{self.name}: window {self.window} must satisfy first < end")
        return self


class DatasetsCorpus(Section):
    """Questions from data sets: by default eight types of MetaMathQA, and NuminaMath-TIR."""

    source: Literal["datasets"] = "datasets"
    tables: tuple[Table, ...] = (
        Table(
            name="meta-math/MetaMathQA",
            question="query",
            solution="response",
            type="type",
            types=METAMATH_TYPES,
        ),
        Table(
            name="AI-MO/NuminaMath-TIR",
            question="problem",
            solution="solution",
            types=(NUMINA_TYPE,),
        ),
    )
    prod: bool = False
    """Read all rows instead of each table's window."""


Corpus = Annotated[ArithmeticCorpus | DatasetsCorpus, Field(discriminator="source")]


class EconomicsConfig(Section):
    """Rules of one episode, in which N problems share one token budget."""

    problems: PositiveInt = 10
    """Problems per episode (N)."""
    mode: Mode = DEFAULT_MODE
    """`hard` ends the episode at the budget; `soft` continues and charges the excess."""
    rules: Rules = DEFAULT_RULES
    """Reward rules; `compat` reproduces the published rewards including their defects."""
    coefficients: CoefficientSet = DEFAULT_COEFFICIENTS
    """One of the two published coefficient sets (rlsys.environments.economics.rewards)."""
    budget_ratio: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 4.0
    """Budget divided by the questions' own tokens, or by N * (min_tokens + max_tokens) / 2."""
    total_budget: PositiveInt | None = None
    """Budget if the client sends neither a budget nor a tokenizer. None computes it from
    `budget_ratio`, `min_tokens` and `max_tokens`."""
    min_tokens: PositiveInt = 10
    """Hard mode ends the episode when fewer tokens remain. It is not a minimum price."""
    max_tokens: PositiveInt = 800
    """Used only to compute the budget; it does not limit answers."""
    allow_negative: bool = True
    """Soft mode: show a negative `remaining_budget`. False shows 0; the excess is still charged."""
    reveal_type: bool = False
    """Send the type of each question, which reveals its difficulty."""
    tokenizer: str | None = None
    """Counts tokens unless the client names a tokenizer. None estimates tokens from words."""
    tokenizers: tuple[str, ...] = ("tiny", "Qwen/Qwen2.5-0.5B-Instruct", "Qwen/Qwen3-0.6B")
    """Tokenizers that clients may name: `tiny`, hub names, or folders with a tokenizer.json."""
    trusted: bool = False
    """Charge the number of sampled ids that the client reports. Use it only for clients that you
    run yourself, such as your trainer."""
    max_response_characters: PositiveInt = 262_144
    """Longer responses are refused."""
    corpus: Corpus = ArithmeticCorpus()

    @model_validator(mode="after")
    def _consistent(self) -> EconomicsConfig:
        if self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens {self.min_tokens} exceeds max_tokens {self.max_tokens}")
        if self.mode == "hard" and self.config_budget < self.min_tokens:
            raise ValueError(
                f"a budget of {self.config_budget} tokens is less than min_tokens "
                f"{self.min_tokens}, so no question could be answered; raise total_budget or "
                "budget_ratio"
            )
        if self.config_budget < 1:
            raise ValueError(
                f"budget_ratio {self.budget_ratio:g} gives a budget of 0 tokens; raise it or set "
                "total_budget"
            )
        return self

    @property
    def config_budget(self) -> int:
        """`total_budget`, else budget_ratio * N * (min_tokens + max_tokens) / 2, truncated."""
        if self.total_budget is not None:
            return self.total_budget
        return int(self.budget_ratio * self.problems * (self.min_tokens + self.max_tokens) / 2)


class EconomicsServerConfig(Section):
    """The environment served over HTTP and WebSocket."""

    environment: EconomicsConfig = EconomicsConfig()
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    """0 lets the system choose a free port."""
    max_sessions: PositiveInt = 64
    """Sessions at the same time. A further one gets the error CAPACITY_REACHED and is closed."""
    idle_timeout_s: PositiveFloat = 900.0
    """A session that sends nothing for this long is closed."""
    max_frame_characters: PositiveInt = 1024 * 1024
    """A longer message gets an error; more than 12 times as many bytes close the socket."""
