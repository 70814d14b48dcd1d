"""What environments are made from, and what the actors that run them see of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from rlsys.config import RunConfig
from rlsys.environments.report import GroupReport
from rlsys.tokenization.prompts import PromptRenderer
from rlsys.types import Decode, Generator, Grader, Group, Problem, Sample

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Role = Literal["training", "evaluation"]


class EpisodeSource(Protocol):
    """Grows groups and tells of them."""

    async def grow(self, index: int, problem: Problem) -> Group:
        """Grow the group at this place in the admission order."""
        ...

    def report(self, group: Group, samples: Sequence[Sample]) -> GroupReport:
        """What the driver learns of a group."""
        ...


@dataclass(frozen=True, slots=True)
class Reader:
    """The frozen reflection model of a run."""

    generator: Generator
    max_length: int
    """Most tokens of a prompt and its reply together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiring:
    """What all environments are made from."""

    config: RunConfig
    role: Role
    tokenizer: PreTrainedTokenizerBase
    decode: Decode
    renderer: PromptRenderer
    generator: Generator
    grader: Grader
    max_length: int
    reader: Reader | None

    @property
    def training(self) -> bool:
        return self.role == "training"

    @property
    def group_size(self) -> int:
        config = self.config
        return config.batch.group_size if self.training else config.evaluation.samples

    @property
    def temperature(self) -> float:
        config = self.config
        return config.generation.temperature if self.training else config.evaluation.temperature

    @property
    def seed(self) -> int:
        return self.config.seed + (not self.training)
