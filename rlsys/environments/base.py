"""The part of an environment's interface that checks its input and creates its instances.

rlsys.types.Environment defines the rollouts. A class of environments has two class methods besides:
`inputs` checks and loads what a run needs, on the driver, before Ray starts; `create` makes an
instance from a configuration, inside the environment actors. `ProblemEnvironment` implements both
for environments that use the problems of `data`. `rlsys.environments.registry` finds the class.
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
from rlsys.grading.countdown import check_countdown_gold
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
    """The checked inputs of a run."""

    train: Sequence[Task]
    """Training problems whose prompt is short enough, or the seeds of training episodes."""
    evaluation: Sequence[Task]
    """The held-out problems of the evaluation, or the seeds of its episodes."""
    longest_sequence: int
    """Most tokens of a whole sequence: prompt and all sampled, forced and observed tokens."""
    reflection_length: int | None = None
    """Longest sequence of the reflection model in tokens; None in a run without one."""
    canary: tuple[Tokens, ...]
    """Prompts on which engine and learner are compared after every sync."""
    summary: str
    """One sentence for the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputContext:
    """Configuration, tokenizer and model limit, from which `inputs` is computed."""

    config: RunConfig
    tokenizer: PreTrainedTokenizerBase
    renderer: PromptRenderer
    limit: int
    """Longest sequence of the model in tokens."""

    def settings(self, kind: type[ConfigT]) -> ConfigT:
        """Return the `environment` section, which must be a `kind`."""
        return _settings(self.config, kind)


@dataclass(frozen=True, slots=True)
class ReflectionModel:
    """The frozen reflection model of a run."""

    generator: Generator
    max_length: int
    """Most tokens of a prompt and its reply together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutContext:
    """Everything that an environment is created from, inside an environment actor."""

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
    def top_p(self) -> float:
        """Share of the probability that is sampled from: 1 in training, see GenerationRequest."""
        return 1.0 if self.training else self.config.evaluation.top_p

    @property
    def seed(self) -> int:
        """Seed from which the seed of every request is derived."""
        # Training group i and evaluation group i would otherwise have the same request seeds.
        return self.config.seed + (not self.training)

    def settings(self, kind: type[ConfigT]) -> ConfigT:
        """Return the `environment` section, which must be a `kind`."""
        return _settings(self.config, kind)


def _settings(config: RunConfig, kind: type[ConfigT]) -> ConfigT:
    section: EnvironmentConfig = config.environment
    assert isinstance(section, kind), f"{type(section).__name__} is not a {kind.__name__}"
    return section


class EnvironmentClass(ABC):
    """Base of the classes that `environment.type` names."""

    Config: ClassVar[type[EnvironmentConfig]]
    """Schema of the `environment` section of a run."""

    @classmethod
    @abstractmethod
    def inputs(cls, context: InputContext) -> Inputs:
        """Return the checked inputs of a run, or raise a UserError that names the problem.

        Called on the driver before Ray starts, so bad input is reported before anything expensive
        runs.
        """

    @classmethod
    @abstractmethod
    def create(cls, context: RolloutContext) -> Environment[Any]:
        """Return the environment of training groups or of evaluation groups (context.role)."""


class ProblemEnvironment(EnvironmentClass):
    """Base for environments whose episodes begin with the prompt of a problem from `data`.

    A subclass defines `Config` and `rollout`, and may override the other methods. Training and
    evaluation use the same class.
    """

    def __init__(self, context: RolloutContext) -> None:
        """Store the context for rollouts; called by `create`."""
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
        """Return the most tokens after the prompt on one path: sampled and inserted tokens."""
        return context.config.environment.longest_episode

    @abstractmethod
    async def rollout(self, index: int, task: Problem) -> Group:
        """See rlsys.types.Environment."""

    def report(self, group: Group, samples: Sequence[Sample]) -> GroupReport:
        """Report scores, lengths and one readable episode."""
        return report_episodes(group, samples, self.context.decode)


def problem_inputs(context: InputContext, after_prompt: int) -> Inputs:
    """Return the training and evaluation problems whose prompt is short enough.

    `after_prompt` is the most tokens that follow a prompt.

    Raises:
        ModelError: the longest sequence of the model leaves no room for a prompt.
        DataError: problems are missing, empty or malformed, or every prompt is too long.
    """
    config = context.config
    room = context.limit - after_prompt
    if room < 1:
        raise ModelError(_no_room(context, after_prompt))
    prompt_tokens = min(config.data.prompt.max_tokens, room)
    problems, unanswered = load_problem_set(config.data.train, "data.train")
    held_out, also_unanswered = load_problem_set(config.data.evaluation, "data.evaluation")
    held_out = held_out[: config.evaluation.problems]
    unanswered += also_unanswered
    if config.grading.policy == "countdown":
        for problem in (*problems, *held_out):
            check_countdown_gold(problem.id, problem.answer)
    try:
        train, dropped = filter_prompts(problems, context.renderer, prompt_tokens)
        evaluation, also_dropped = filter_prompts(held_out, context.renderer, prompt_tokens)
    except DataError as error:
        # The error names data.prompt.max_tokens. If the model leaves even fewer tokens, raising
        # that setting does not help, so the error must name the model instead.
        if room >= config.data.prompt.max_tokens:
            raise
        raise ModelError(f"{_no_room(context, after_prompt)} ({error})") from None
    dropped += also_dropped
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
