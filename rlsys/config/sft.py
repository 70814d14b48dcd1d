"""Everything `rlsys sft` needs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from rlsys.config.base import NonNegativeFloat, NonNegativeInt, Section, Share
from rlsys.config.cluster import LearnerCluster
from rlsys.config.data import CountdownShape, EarlierTurns, Paths, PromptConfig
from rlsys.config.learner import LearnerConfig
from rlsys.config.models import ModelConfig
from rlsys.config.reporting import ReportingConfig


class RpoConfig(Section):
    """The loss on pairs: DPO plus the likelihood of the chosen (arXiv 2404.19733)."""

    beta: PositiveFloat = 0.1
    """How strongly the policy is held to the starting policy."""
    alpha: NonNegativeFloat = 1.0
    """Weight of the likelihood of the chosen; 0 is plain DPO."""


class TraceHabits(Section):
    """How arithmetic is written out in supervised traces (rlsys.sft.traces)."""

    silent: Share = 0.0
    """Traces that answer at once, without a thought."""
    terse: Share = 0.25
    """Traces that write running totals only; like the rest, of those that think."""
    check: Share = 0.0
    """Steps of a verbose chain that are done once more right away, without a slip."""
    recheck: Share = 0.5
    """Verbose traces that go through the whole chain once more, asked again after every chain."""
    slip: Share = 0.01
    """Steps of the first chain that are wrong by one."""


class ArithmeticTraces(Section):
    """Supervised rows from the arithmetic generator: terse, verbose, overthinking, wrong turns."""

    source: Literal["arithmetic"] = "arithmetic"
    difficulty: tuple[PositiveInt, PositiveInt] = (6, 6)
    habits: TraceHabits = TraceHabits()
    seed: NonNegativeInt = 0


class DialogueTraces(Section):
    """Supervised dialogues: arithmetic problems that share a budget, each with a written trace."""

    source: Literal["dialogue"] = "dialogue"
    terms: tuple[PositiveInt, PositiveInt] = (2, 10)
    """Fewest and most numbers joined in a problem."""
    problems: PositiveInt = 10
    """Problems per dialogue."""
    habits: TraceHabits = TraceHabits()
    budget: tuple[PositiveInt, PositiveInt] = (200, 600)
    """Smallest and largest budget of a dialogue in tokens; it ends where the budget does."""
    reply: str = "{thought}</think>\n\n**Final Answer**\n\\boxed{{answer}}"
    """Text of a reply, from {thought} and {answer}."""
    prompt: PromptConfig = PromptConfig()
    """Its template may show {remaining}, {questions_remaining}, {per_question}, {number}."""
    seed: NonNegativeInt = 0


class SearchHabits(Section):
    """How a search for the target is written out in supervised traces (rlsys.sft.countdown)."""

    breadth_first: Share = 0.3
    """Searches that go breadth first; the others go depth first."""
    blind: Share = 0.3
    """Searches that try steps in random order; the others are led by a heuristic."""
    width: tuple[PositiveInt, PositiveInt] = (2, 6)
    """Fewest and most steps that are tried from numbers of which three or more are left; a narrow
    search may miss the target."""
    longest: PositiveInt = 1000
    """Most characters of a search; one that is longer gives up."""

    @model_validator(mode="after")
    def _ordered(self) -> SearchHabits:
        narrow, wide = self.width
        if narrow > wide:
            raise ValueError(f"width ({narrow}, {wide}) must be fewest <= most")
        return self


class CountdownTraces(CountdownShape):
    """Supervised rows for Countdown: written searches with dead ends, some of which fail."""

    source: Literal["countdown"] = "countdown"
    habits: SearchHabits = SearchHabits()
    cut: Share = 0.3
    """Rows whose thought is cut at a random place and answered right."""
    prompt: PromptConfig = PromptConfig()
    """The same as in reinforcement learning, as the next three keys are."""
    think_end: str | None = "</think>"
    closing: str = ""
    answer_header: str = "\n\n**Final Answer**\n\\boxed{"
    """Must open the box: the answer of a row is an expression and the closing brace."""
    seed: NonNegativeInt = 0


class SupervisedFile(Section):
    """Supervised rows from files: a prompt (rendered through `prompt`) and a response."""

    source: Literal["file"] = "file"
    path: Paths
    """Files, folders, globs or fsspec URLs, read in this order."""
    prompt_column: str = "problem"
    """A text, or chat messages: then the last user turn is the prompt."""
    response_column: str = "response"
    """A text, or chat messages: then the last assistant turn is the response."""
    earlier_turns: EarlierTurns = "refuse"
    """Chat messages before the last user turn, a system turn too: refuse the row or drop them."""
    prompt: PromptConfig = PromptConfig()
    max_tokens: PositiveInt = 2048
    """Longer rows are dropped and counted."""

    @property
    def columns(self) -> dict[str, str]:
        """Setting to column of a row: prompt, response."""
        return {"prompt_column": self.prompt_column, "response_column": self.response_column}


class PreferenceFile(Section):
    """Pairs from files: a prompt, the response to prefer and the one to turn away from."""

    source: Literal["preferences"] = "preferences"
    path: Paths
    """Files, folders, globs or fsspec URLs, read in this order."""
    prompt_column: str = "problem"
    chosen_column: str = "chosen"
    rejected_column: str = "rejected"
    earlier_turns: EarlierTurns = "refuse"
    """Chat messages before the last user turn, a system turn too: refuse the row or drop them."""
    prompt: PromptConfig = PromptConfig()
    max_tokens: PositiveInt = 2048
    """Pairs of which a prompt with its response is longer are dropped and counted."""

    @property
    def columns(self) -> dict[str, str]:
        """Setting to column of a pair: prompt, chosen response, rejected response."""
        return {
            "prompt_column": self.prompt_column,
            "chosen_column": self.chosen_column,
            "rejected_column": self.rejected_column,
        }


SftData = Annotated[
    ArithmeticTraces | CountdownTraces | DialogueTraces | SupervisedFile | PreferenceFile,
    Field(discriminator="source"),
]


class SftConfig(Section):
    """Everything `rlsys sft` needs: the same learner with the loss on response tokens.

    With data.source `preferences` the rows are pairs and the loss is that of `rpo`.
    """

    name: str = "sft"
    run_dir: Path = Path("runs/sft")
    seed: NonNegativeInt = 0
    steps: PositiveInt = 100
    epochs: PositiveInt | None = None
    """Passes over the rows of the files, which replace `steps`: this number times the rows divided
    by `rows_per_step`, rounded down. None leaves `steps` as it is."""
    model: ModelConfig = ModelConfig()
    data: SftData = Field(default_factory=lambda: ArithmeticTraces())
    rows_per_step: PositiveInt = 256
    rpo: RpoConfig = RpoConfig()
    """Used with data.source `preferences`."""
    learner: LearnerConfig = LearnerConfig()
    cluster: LearnerCluster = LearnerCluster()
    log_every: PositiveInt = 10
    reporting: ReportingConfig = ReportingConfig()

    @model_validator(mode="after")
    def _has_an_end(self) -> SftConfig:
        if self.epochs is not None and self.data.source in ("arithmetic", "dialogue"):
            raise ValueError(
                f"epochs {self.epochs} needs rows from files, and data.source "
                f"{self.data.source!r} makes rows without end; use steps"
            )
        return self
