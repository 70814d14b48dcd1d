"""Settings of REA-RL: how a thought is read, where it is revised, what is rewarded."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt, field_validator, model_validator

from rlsys.config_base import NonNegativeFloat, NonNegativeInt, Section
from rlsys.config_parts import EnginesConfig, ModelConfig, ThoughtSection


class ChunkingConfig(Section):
    """How a thought becomes numbered chunks (rlsys.algorithms.reflection.chunk_thought)."""

    separator: str = r"\n{2,}"
    """Regular expression between pieces; `(?=[;?])` splits the tiny reasoner's thoughts."""
    least: PositiveInt = 32
    """Tokens from which the end of a sentence ends a chunk."""
    most: PositiveInt = 128
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

    reader: ModelConfig
    """The reflection model."""
    reader_generation: EnginesConfig = EnginesConfig(max_sequences=64, gpu_memory_utilization=0.3)
    """Its engines. With a fraction of a card each, beside a policy engine that has a fraction too,
    they share that engine's card; else they have resources of their own."""
    detector: DetectorConfig = DetectorConfig()
    strength: Literal["normal", "weak", "strong", "first"] = "normal"
    """Which chunk to cut after (rlsys.algorithms.reflection.cut_index)."""
    answer_tokens: PositiveInt | None = None
    """Most sampled tokens of a revised answer; None takes the environment's."""
    timeout_s: PositiveFloat = 120.0
    """A thought that is not read by then keeps its original, and is counted."""
    restarts: NonNegativeInt = 3
    """How often the process of a dead reader is started again; then its thoughts keep their
    originals."""


class ReflectionEpisodes(ThoughtSection):
    """A thought with its own answer, and a revision of it (arXiv 2505.19862)."""

    type: Literal["reflection"] = "reflection"
    budget: PositiveInt = 8192
    """Most tokens of a thought; one that has not ended by then is closed by force."""
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


class ReflectionReward(Section):
    """What a thought earns by reflecting often enough."""

    tokens_per_reflection: PositiveFloat = 225.09
    """The rarest that is often enough: a fifth of the starting policy's thoughts reflect more
    rarely. `rlsys reflection rows` tells the number of a policy, as `environment.reflections`
    counts; the default is the published one, of a 7B model and `mode: published`."""
    scale: Literal["code", "paper"] = "code"
    """`code` pays 0 to 1, `paper` -1 to 0; a group's advantages are the same."""
    weight: PositiveFloat = 1.0


class ShapingConfig(Section):
    """Rewards of a thought beside a right answer. All are of one question, lengths in tokens."""

    length: Literal["none", "length", "refined", "refined_paper"] = "refined"
    """Reward for being short (rlsys.algorithms.reflection.length_reward)."""
    length_weight: NonNegativeFloat = 1.0
    reflection: ReflectionReward | None = ReflectionReward()
    """None rewards no reflections."""


class ReaConfig(ShapingConfig):
    """REA-RL: originals and revisions in one group. Nothing but accuracy is left of it with
    `length: none`, `reflection: null` and no revision: that is GRPO."""

    method: Literal["rea"] = "rea"
    tail_loss: Literal["none", "mean", "max"] = "none"
    """Hold the removed tail once more against the thought, with the mean or the largest absolute
    advantage of the group (the released code takes it over the whole batch)."""
