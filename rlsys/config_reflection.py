"""Settings of the reflection model: how thoughts are chunked for it, asked about and read."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, PositiveInt, field_validator

from rlsys.config_base import Section


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


class DetectorConfig(Section):
    """How the reflection model is asked which chunks state an answer."""

    layout: Literal["text", "compact"] = "text"
    """`text` is an instruction for a chat model, `compact` has a character per label for the tiny
    one (rlsys.reflection.prompts)."""
    chunking: ChunkingConfig = ChunkingConfig()
    candidates: Annotated[int, Field(ge=2, le=20)] = 5
    """Most likely tokens that a label's probability is read from."""
