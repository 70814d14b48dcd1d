"""Every setting of the economics environment, with its default."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, PositiveInt, model_validator

from rlsys.config.base import NonNegativeInt, Section

Mode = Literal["hard", "soft"]
Rules = Literal["default", "compat"]
CoefficientSet = Literal["D", "D2"]

METAMATH_TYPES: Final = tuple(
    f"{family}_{kind}"
    for family in ("MATH", "GSM")
    for kind in ("AnsAug", "Rephrased", "SV", "FOBAR")
)
NUMINA_TYPE: Final = "NuminaMath_TIR"


class ArithmeticCorpus(Section):
    """Questions from rlsys' own generator: needs no network, and says what it is."""

    source: Literal["arithmetic"] = "arithmetic"
    terms: tuple[PositiveInt, PositiveInt] = (2, 10)
    """Fewest and most numbers joined in a question; every count is a type of its own."""
    per_type: PositiveInt = 100
    """Questions of each type; two numbers make 162 different ones."""
    seed: NonNegativeInt = 0
    held_out: bool = False
    """Draw from the quarter of all questions kept for evaluation, which training never sees."""

    @model_validator(mode="after")
    def _ordered(self) -> ArithmeticCorpus:
        low, high = self.terms
        if not 2 <= low <= high:
            raise ValueError(f"terms ({low}, {high}) must be 2 <= fewest <= most")
        return self


class Table(Section):
    """One data set of questions with their answers, and which of its columns means what."""

    name: str
    """Hugging Face data set, or a label where `path` is given."""
    path: tuple[Path, ...] = ()
    """Local JSONL, JSON or Parquet files instead of the hub."""
    subset: str | None = None
    split: str = "train"
    question: str
    """Column with the question."""
    solution: str | None = None
    """Column with the worked solution, which states the gold answer."""
    answer: str | None = None
    """Column with nothing but the gold answer, in the place of `solution`."""
    type: str | None = None
    """Column with the question's type; rows of a type not in `types` are dropped."""
    types: tuple[str, ...] = Field(min_length=1)
    """Types taken, or the one type of all rows where there is no such column."""
    window: tuple[NonNegativeInt, PositiveInt] = (0, 500)
    """Rows [first, end) read unless `prod` is on."""

    @model_validator(mode="after")
    def _consistent(self) -> Table:
        if (self.solution is None) == (self.answer is None):
            raise ValueError(
                f"{self.name}: solution is {self.solution!r} and answer is {self.answer!r}; name "
                "one of them, the column with worked solutions or with plain answers"
            )
        if self.type is None and len(self.types) != 1:
            raise ValueError(f"{self.name}: without a type column there is one type, not many")
        if self.window[0] >= self.window[1]:
            raise ValueError(f"{self.name}: window {self.window} must be first < end")
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
    """Read all rows rather than each table's window."""


Corpus = Annotated[ArithmeticCorpus | DatasetsCorpus, Field(discriminator="source")]


class EconomicsConfig(Section):
    """One episode: N problems share one token budget."""

    problems: PositiveInt = 10
    """Problems per episode (N)."""
    mode: Mode = "hard"
    """`hard` stops at the budget, `soft` charges what lies beyond it."""
    rules: Rules = "default"
    """Reward rules; `compat` reproduces the published numbers, defects included."""
    coefficients: CoefficientSet = "D"
    """Published coefficient set."""
    budget_ratio: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 4.0
    """Budget over the questions' own tokens, or over N * (min_tokens + max_tokens) / 2."""
    total_budget: PositiveInt | None = None
    """Budget where the client sends neither a budget nor a tokenizer; None takes the formula."""
    min_tokens: PositiveInt = 10
    """Hard mode: the episode ends when less is left. Not a floor on what an answer costs."""
    max_tokens: PositiveInt = 800
    """Only part of the formula of the budget."""
    allow_negative: bool = True
    """Soft mode: `remaining_budget` may be shown negative; else 0 is shown, and still charged."""
    reveal_type: bool = False
    """Send the type of each question, which tells its difficulty."""
    tokenizer: str | None = None
    """Counts the tokens unless the client names another; None counts words, and says so."""
    tokenizers: tuple[str, ...] = ("tiny", "Qwen/Qwen2.5-0.5B-Instruct", "Qwen/Qwen3-0.6B")
    """All that clients may name: `tiny`, hub names, or folders with a tokenizer.json."""
    trusted: bool = False
    """Charge the number of sampled ids that the client sends; only for one's own trainer."""
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
                f"{self.min_tokens}, so that no answer could be given; raise total_budget or "
                "budget_ratio"
            )
        if self.config_budget < 1:
            raise ValueError(
                f"budget_ratio {self.budget_ratio:g} leaves a budget of no token; raise it, or set "
                "total_budget"
            )
        return self

    @property
    def config_budget(self) -> int:
        """`total_budget`, else budget_ratio * N * (min_tokens + max_tokens) / 2, truncated."""
        if self.total_budget is not None:
            return self.total_budget
        return int(self.budget_ratio * self.problems * (self.min_tokens + self.max_tokens) / 2)
