"""The interface of an environment beyond its rollouts: how one is checked and how one is made.

rlsys.types.Environment is what runs. A class that is one also says, through two class methods, what
a run of it needs (`inputs`, on the driver, before Ray starts) and how an instance is made from a
configuration (`create`, inside the environment actors). `ProblemEnvironment` has both for
environments that answer the problems of `data`; `rlsys.environments.registry` finds the class.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeVar

from rlsys.config import EnvironmentConfig, RunConfig
from rlsys.data.problems import load_problem_set
from rlsys.environments.report import report_episodes
from rlsys.errors import DataError, ModelError
from rlsys.tokenization.prompts import PromptRenderer, filter_prompts
from rlsys.types import (
    Decode,
    Environment,
    Generator,
    Grader,
    Group,
    GroupReport,
    Problem,
    Sample,
    Task,
    Tokens,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Role = Literal["training", "evaluation"]
ConfigT = TypeVar("ConfigT", bound=EnvironmentConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What a run works with, checked."""

    train: Sequence[Task]
    """Training problems whose prompt fits, or the seeds of episodes."""
    evaluation: Sequence[Task]
    """The held-out problems of the evaluation, or their seeds."""
    longest_sequence: int
    """Most tokens of a whole sequence: prompt, everything sampled, forced or observed."""
    reflection_length: int | None = None
    """Most tokens that the reflection model reads and writes; None in a run without one."""
    canary: tuple[Tokens, ...]
    """Prompts on which engine and learner are compared after every sync."""
    summary: str
    """One sentence for the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputContext:
    """What the inputs of a run are checked against."""

    config: RunConfig
    tokenizer: PreTrainedTokenizerBase
    renderer: PromptRenderer
    limit: int
    """Most tokens of a sequence that the model takes."""

    def settings(self, kind: type[ConfigT]) -> ConfigT:
        """The `environment` section, which the caller knows to be a `kind`."""
        return _settings(self.config, kind)


@dataclass(frozen=True, slots=True)
class ReflectionModel:
    """The frozen reflection model of a run."""

    generator: Generator
    max_length: int
    """Most tokens of a prompt and its reply together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutContext:
    """What an environment is made from, inside an environment actor."""

    config: RunConfig
    role: Role
    tokenizer: PreTrainedTokenizerBase
    decode: Decode
    """Token ids to text, special tokens dropped."""
    renderer: PromptRenderer
    generator: Generator
    grader: Grader
    max_length: int
    """Most tokens of a whole sequence."""
    reflection_model: ReflectionModel | None = None

    @property
    def training(self) -> bool:
        """True for the environment of training groups."""
        return self.role == "training"

    @property
    def group_size(self) -> int:
        """Episodes per group."""
        config = self.config
        return config.batch.group_size if self.training else config.evaluation.samples

    @property
    def temperature(self) -> float:
        """Temperature of all samples."""
        config = self.config
        return config.generation.temperature if self.training else config.evaluation.temperature

    @property
    def seed(self) -> int:
        """Seed that requests derive theirs from; the evaluation has one of its own."""
        return self.config.seed + (not self.training)

    def settings(self, kind: type[ConfigT]) -> ConfigT:
        """The `environment` section, which the caller knows to be a `kind`."""
        return _settings(self.config, kind)


def _settings(config: RunConfig, kind: type[ConfigT]) -> ConfigT:
    section: EnvironmentConfig = config.environment
    assert isinstance(section, kind), f"{type(section).__name__} is no {kind.__name__}"
    return section


class EnvironmentClass(ABC):
    """What `environment.type` names: the class of an environment."""

    Config: ClassVar[type[EnvironmentConfig]]
    """Its settings: the `environment` section of a run."""

    @classmethod
    @abstractmethod
    def inputs(cls, context: InputContext) -> Inputs:
        """Return what a run works with, or raise a UserError that says what is wrong.

        Called on the driver before Ray starts, so that nothing expensive has begun.
        """

    @classmethod
    @abstractmethod
    def create(cls, context: RolloutContext) -> Environment[Any]:
        """Return the environment of training groups or of evaluation groups (context.role)."""


class ProblemEnvironment(EnvironmentClass):
    """Base for environments whose episodes begin with the prompt of a problem from `data`.

    A subclass has a `Config` and a `rollout`, and overrides what fits it less well. The training
    environment also serves the evaluation.
    """

    def __init__(self, context: RolloutContext) -> None:
        """Keep what rollouts need; called by `create`."""
        self.context = context

    @classmethod
    def inputs(cls, context: InputContext) -> Inputs:
        """Load the problems and drop those whose prompt leaves too little room for an episode."""
        return problem_inputs(context, cls.tokens_after_prompt(context))

    @classmethod
    def create(cls, context: RolloutContext) -> Self:
        """Return an instance for either role."""
        return cls(context)

    @classmethod
    def tokens_after_prompt(cls, context: InputContext) -> int:
        """Most tokens of one path behind the prompt: sampled ones and those that are inserted."""
        return context.config.environment.longest_episode

    @abstractmethod
    async def rollout(self, index: int, task: Problem) -> Group:
        """See rlsys.types.Environment."""

    def report(self, group: Group, samples: Sequence[Sample]) -> GroupReport:
        """Report scores, lengths and one readable episode."""
        return report_episodes(group, samples, self.context.decode)


def problem_inputs(context: InputContext, after_prompt: int) -> Inputs:
    """Return the problems whose prompt fits, in training and in evaluation.

    `after_prompt` is the most tokens that follow a prompt.

    Raises:
        ModelError: the model's sequences are too short for such episodes.
        DataError: problems are missing, empty or malformed, or every prompt is too long.
    """
    config = context.config
    room = context.limit - after_prompt
    if room < 1:
        raise ModelError(_no_room(context, after_prompt))
    prompt_tokens = min(config.data.prompt.max_tokens, room)
    problems, unanswered = load_problem_set(config.data.train, "data.train")
    held_out, more = load_problem_set(config.data.evaluation, "data.evaluation")
    held_out, unanswered = held_out[: config.evaluation.problems], unanswered + more
    try:
        train, dropped = filter_prompts(problems, context.renderer, prompt_tokens)
        evaluation, more = filter_prompts(held_out, context.renderer, prompt_tokens)
    except DataError as error:
        if room >= config.data.prompt.max_tokens:
            raise
        raise ModelError(f"{_no_room(context, after_prompt)} ({error})") from None
    dropped += more
    note = f", {dropped:,} dropped because their prompt is too long" * bool(dropped)
    note += f", {unanswered:,} skipped because they have no answer" * bool(unanswered)
    longest = prompt_tokens + after_prompt
    return Inputs(
        train=train,
        evaluation=evaluation,
        longest_sequence=longest,
        canary=tuple(context.renderer.render(p) for p in evaluation[: config.sync.canary_prompts]),
        summary=(
            f"{len(train):,} training and {len(evaluation):,} held-out problems{note}; sequences "
            f"of at most {longest:,} tokens"
        ),
    )


def _no_room(context: InputContext, after_prompt: int) -> str:
    limit, config = context.limit, context.config
    return (
        f"environment.type {config.environment.type!r} needs {after_prompt} tokens after the "
        f"prompt, and model.path {config.model.path!r} takes {limit} in all, which leaves "
        f"{max(limit - after_prompt, 0)} for the prompt; lower {config.environment.length_keys}"
    )
