"""The environments that ship with rlsys, and the base of everybody else's.

What the rest of rlsys must know of an environment before it exists (how long its episodes get, how
many scores they have, which methods train them) are properties of its section, so that no other
file asks which kind of environment a run has.
"""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveFloat, PositiveInt, field_validator, model_validator

from rlsys.config.base import NonNegativeInt, Section, check_budgets
from rlsys.config.models import EnginesConfig, ModelConfig
from rlsys.config.published import (
    BLANK_LINES,
    CLUSTER_GAP,
    KEYWORDS,
    LEAST_TOKENS,
    MOST_TOKENS,
)


class EnvironmentConfig(Section):
    """Base of the settings of every environment; a class outside rlsys derives its own from it."""

    methods: ClassVar[tuple[str, ...]] = ("grpo", "ddca", "dler", "lcpo", "reinforce++", "distill")
    """Values of `algorithm.method` that train these episodes. A method given as an import path is
    not compared with them."""

    length_keys: ClassVar[str] = "the lengths in environment"
    """Keys to lower where episodes are too long for the model, for an error message."""

    type: str
    """The kind of environment: a name that rlsys knows, or `package.module:Class`."""

    @property
    def longest_episode(self) -> int:
        """Most sampled tokens of an episode."""
        raise NotImplementedError

    @property
    def scores_per_episode(self) -> int:
        """Most scores of an episode."""
        return 1

    @property
    def size_origins(self) -> tuple[str, str]:
        """Where the scores of a step and the tokens of an episode come from, for the batch table.

        Example: ("x 4 budgets x 2 answers per episode", "64 thought + 8 x 6 answer per episode")
        """
        return "x 1 score per episode", f"{self.longest_episode} per episode"

    @property
    def curve_budgets(self) -> tuple[int, ...]:
        """Thought budgets of the evaluation where `evaluation.budgets` names none."""
        return ()

    @property
    def revised_by(self) -> RevisionConfig | None:
        """How thoughts are revised; None in an environment that does not revise."""
        return None

    @property
    def evaluation_warning(self) -> str | None:
        """A sentence if the evaluation measures what is trained on; None if it does not."""
        return None


Word = Annotated[str, Field(min_length=1)]


class CountingConfig(Section):
    """What counts as a reflection (rlsys.algorithms.reflection.count_reflections)."""

    mode: Literal["published", "words"] = "words"
    """`words` finds `words` standing alone, `published` the paper's keywords anywhere, as the "but"
    in "distribution"."""
    words: Annotated[tuple[Word, ...], Field(min_length=1)] = KEYWORDS
    """What `words` counts; the tiny reasoner reflects with `?`."""
    gap: NonNegativeInt = CLUSTER_GAP
    """Characters that join two of them into one reflection, at most."""


class ThoughtSection(EnvironmentConfig):
    """How a thought ends, and how an answer follows it."""

    answer_tokens: PositiveInt = 118
    """Most sampled tokens per answer."""
    think_end: str | None = "</think>"
    """Text that ends a thought; null for a model without one, whose thoughts end with EOS."""
    closing: str = "...\n\n...\n\n"
    """Text forced before think_end where the thought is cut."""
    answer_header: str = "\n\n**Final Answer**\n"
    """Text forced after think_end, before the answer."""
    reflections: CountingConfig = CountingConfig()

    @property
    def longest_thought(self) -> int:
        """Most tokens of a thought."""
        raise NotImplementedError


class AnytimeConfig(ThoughtSection):
    """Thought up to the largest budget, cut at every budget, answers at every cut."""

    methods = ("brpo", "grpo", "ddca", "dler", "lcpo", "reinforce++", "sgrpo", "distill")
    length_keys = "environment.budgets, evaluation.budgets or environment.answer_tokens"

    type: Literal["anytime"] = "anytime"
    budgets: tuple[PositiveInt, ...] = (16, 32, 48, 64)
    """Increasing numbers of thought tokens; one reward slot each."""
    answers: PositiveInt = 4
    """Answers sampled per slot (A)."""
    truncation: Literal["close", "zero", "mask"] = "close"
    """What becomes of a training thought that has not ended at the largest budget. `close` forces
    its end and samples answers. `zero` scores it 0 without an answer. `mask` does the same, but
    trains none of its tokens: it counts only in the baseline of its group."""

    @model_validator(mode="after")
    def _increasing(self) -> AnytimeConfig:
        check_budgets(self.budgets, "environment.budgets")
        if self.truncation != "close" and len(self.budgets) > 1:
            raise ValueError(
                f"environment.truncation {self.truncation!r} needs one budget, and "
                f"environment.budgets has {len(self.budgets)}: with several, thoughts are cut on "
                f"purpose; use truncation 'close', or budgets [{self.budgets[-1]}]"
            )
        return self

    @property
    def scores_per_episode(self) -> int:
        """Budgets x answers."""
        return len(self.budgets) * self.answers

    @property
    def longest_thought(self) -> int:
        """The largest budget."""
        return self.budgets[-1]

    @property
    def longest_episode(self) -> int:
        """The largest budget + scores x answer tokens."""
        return self.budgets[-1] + self.scores_per_episode * self.answer_tokens

    @property
    def size_origins(self) -> tuple[str, str]:
        """See EnvironmentConfig."""
        return (
            f"x {len(self.budgets)} budgets x {self.answers} answers per episode",
            f"{self.budgets[-1]} thought + {self.scores_per_episode} x {self.answer_tokens} answer "
            "per episode",
        )

    @property
    def curve_budgets(self) -> tuple[int, ...]:
        """The budgets that are trained on."""
        return self.budgets


class ChunkingConfig(Section):
    """How a thought becomes numbered chunks (rlsys.algorithms.reflection.chunk_thought)."""

    separator: str = BLANK_LINES
    """Regular expression between pieces; `(?=[;?])` splits the tiny reasoner's thoughts."""
    least: PositiveInt = LEAST_TOKENS
    """Tokens from which the end of a sentence ends a chunk."""
    most: PositiveInt = MOST_TOKENS
    """Tokens that a chunk stays below where it can; 1 makes every piece a chunk."""

    @field_validator("separator")
    @classmethod
    def _compiles(cls, value: str) -> str:
        try:
            re.compile(value)
        except re.error as error:
            raise ValueError(f"separator {value!r} is no regular expression ({error})") from None
        return value

    @model_validator(mode="after")
    def _room(self) -> ChunkingConfig:
        # most = 1 is a rule of its own, and `least` says nothing then.
        if 1 < self.most <= self.least:
            raise ValueError(
                f"least {self.least} leaves no room below most {self.most}; make least smaller "
                "than most, or most 1 for a chunk per piece"
            )
        return self


class DetectorConfig(Section):
    """How the reflection model is asked which chunks state an answer."""

    layout: Literal["text", "compact"] = "text"
    """`text` is an instruction for a chat model, `compact` has a character per label for the tiny
    one (rlsys.reflection.prompts)."""
    chunking: ChunkingConfig = ChunkingConfig()
    candidates: Annotated[int, Field(ge=2, le=20)] = 5
    """Most likely tokens that a label's probability is read from."""


class RevisionConfig(Section):
    """Where the policy answers once more: at the cut that a frozen reflection model finds."""

    model: ModelConfig
    """The reflection model."""
    generation: EnginesConfig = EnginesConfig(max_sequences=64, gpu_memory_utilization=0.3)
    """Its engines. Where these and the policy's engines ask for a fraction of a card each, engine i
    of both shares card i; otherwise they get resources of their own."""
    detector: DetectorConfig = DetectorConfig()
    strength: Literal["normal", "weak", "strong", "first"] = "normal"
    """Which chunk to cut after (rlsys.algorithms.reflection.cut_index)."""
    answer_tokens: PositiveInt | None = None
    """Most sampled tokens of a revised answer; None takes the environment's."""
    timeout_s: PositiveFloat = 120.0
    """A thought that the reflection model has not read by then keeps its original, and is
    counted."""
    restarts: NonNegativeInt = 3
    """How often the process of a dead reflection engine is started again. After that, thoughts
    sent to it keep their originals."""


class ReflectionEpisodes(ThoughtSection):
    """A thought with its own answer, and a revision of it (arXiv 2505.19862)."""

    methods = ("rea",)
    length_keys = "environment.budget, evaluation.budgets or environment.answer_tokens"

    type: Literal["reflection"] = "reflection"
    budget: PositiveInt = 8192
    """Most tokens of a thought; one that has not ended by then is closed by force."""
    originals: Literal["forced", "free"] = "forced"
    """`forced` puts `answer_header` between a training thought and its answer. `free` forces
    nothing, as the released code: the policy goes on after its own end of thought, `budget` limits
    thought and answer together, and a response that has not ended by then is graded as it stands.
    Revisions and evaluations are always forced."""
    revision: RevisionConfig | None = None
    """None grows originals only, and needs no reflection model."""

    @property
    def longest_thought(self) -> int:
        """The budget."""
        return self.budget

    @property
    def revision_tokens(self) -> int:
        """Most sampled tokens of a revised answer; 0 without revisions."""
        if self.revision is None:
            return 0
        return self.revision.answer_tokens or self.answer_tokens

    @property
    def longest_episode(self) -> int:
        """The budget + an answer, unless that is within the budget + a revised answer."""
        return self.budget + self._original_tokens + self.revision_tokens

    @property
    def _original_tokens(self) -> int:
        """Most sampled tokens of an original's answer beyond the budget."""
        return self.answer_tokens if self.originals == "forced" else 0

    @property
    def scores_per_episode(self) -> int:
        """The original's, and the revision's if there are revisions."""
        return 1 + (self.revision is not None)

    @property
    def size_origins(self) -> tuple[str, str]:
        """See EnvironmentConfig."""
        revised = self.revision is not None
        return (
            "originals" + " and revisions" * revised,
            f"{self.budget} thought + {self._original_tokens} answer"
            + f" + {self.revision_tokens} revised answer" * revised
            + " per episode",
        )

    @property
    def curve_budgets(self) -> tuple[int, ...]:
        """The budget that is trained on."""
        return (self.budget,)

    @property
    def revised_by(self) -> RevisionConfig | None:
        """See EnvironmentConfig."""
        return self.revision
