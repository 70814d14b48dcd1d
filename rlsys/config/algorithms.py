"""The methods: how scores become advantages."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from rlsys.config.base import Fraction, NonNegativeFloat, Section, Share
from rlsys.config.environments import AnytimeConfig, EnvironmentConfig
from rlsys.config.published import TOKENS_PER_REFLECTION


class AlgorithmConfig(Section):
    """Base of the settings of every method; a class outside rlsys derives its own from it."""

    normalised_over_batch: ClassVar[bool] = False
    """What `loss.normalise_advantages: null` stands for with this method."""

    @property
    def normalisation(self) -> bool | Literal["whiten"]:
        """The same; a method may override it where it depends on its settings."""
        return self.normalised_over_batch

    method: str
    """The method: a name that rlsys knows, or `package.module:Class`."""

    def check(self, environment: EnvironmentConfig, group_size: int) -> None:
        """Raise ValueError where the method cannot train groups of `group_size` such episodes."""
        if group_size == 1:
            raise ValueError(
                f"batch.group_size 1 leaves algorithm.method {self.method!r} without a group "
                "baseline; use 2 or more"
            )


class ReflectionReward(Section):
    """What a thought earns by reflecting often enough."""

    tokens_per_reflection: PositiveFloat = TOKENS_PER_REFLECTION
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


class BrpoConfig(AlgorithmConfig):
    """Budget-relative policy optimisation (arXiv 2505.13438)."""

    method: Literal["brpo"] = "brpo"
    prior: Literal["base", "uniform", "linear"] = "uniform"
    """Weight of each budget in the thought's return (Section 3.1)."""
    mode: Literal["brpo", "v1only", "v2only", "none", "notrain"] = "brpo"
    """Baseline of the thought: budget-relative, one of its halves, none, or no training."""
    coefficients: Literal["index", "budget"] = "index"
    """Mix of the two baselines by slot index (the code) or by b/b_m (Figure 1)."""
    decay: Fraction = 0.5
    """lambda of Eq. 7: how much a score of the same thought counts relative to the score one budget
    later. 1 is the plain mean of all earlier scores."""
    answer_method: Literal["brpo", "grpo"] = "brpo"
    """Train every answer against its siblings, or only the last one of the full budget."""
    summary_weight: NonNegativeFloat = 1.0
    """Factor on answer tokens: 1.0 is the published code, 1/(budgets * answers) is Eq. 10."""
    shaping: ShapingConfig | None = None
    """Rewards of REA-RL on top: their deviation from the group's mean is added to the advantage of
    all tokens of a thought. None is BRPO as published."""

    def check(self, environment: EnvironmentConfig, group_size: int) -> None:
        """One episode is enough where the baseline compares the budgets of one thought."""
        answers = environment.answers if isinstance(environment, AnytimeConfig) else 1
        if self.mode in ("brpo", "v2only") or answers == 1:
            super().check(environment, group_size)


class SingleScoreConfig(AlgorithmConfig):
    """Base of the methods that give an episode one score and all its tokens one advantage."""

    def check(self, environment: EnvironmentConfig, group_size: int) -> None:
        """An episode must have one score."""
        super().check(environment, group_size)
        if isinstance(environment, AnytimeConfig) and environment.scores_per_episode != 1:
            budgets = environment.budgets
            raise ValueError(
                f"algorithm.method {self.method!r} trains one answer at one budget, but "
                f"environment has {len(budgets)} budgets x {environment.answers} answers; set "
                f"environment.budgets to [{budgets[-1]}] and environment.answers to 1, or use "
                "method 'brpo'"
            )


class OverlongConfig(Section):
    """A penalty for responses that are nearly as long as allowed (DAPO, arXiv 2503.14476, Eq. 13).

    It rises from 0 at `limit - buffer` tokens to `penalty` at `limit` tokens.
    """

    buffer: PositiveInt
    """Tokens before the limit in which the penalty rises."""
    penalty: PositiveFloat = 1.0
    """Subtracted from the reward of a response of `limit` or more tokens."""
    limit: PositiveInt | None = None
    """Sampled tokens, thought and answer together; None takes the longest possible episode."""


class GrpoConfig(SingleScoreConfig):
    """Group-relative policy optimisation: one answer, one budget, one advantage per episode."""

    method: Literal["grpo"] = "grpo"
    scale: Literal["none", "std", "leave_one_out", "mean"] = "none"
    """`std` divides by the group's standard deviation (GRPO), `none` does not (Dr. GRPO).
    `leave_one_out` compares a reward with the mean of the other episodes' rewards (RLOO).
    `mean` divides by the group's mean reward (MaxRL)."""
    overlong: OverlongConfig | None = None
    """Penalty for overlong responses; None has none."""

    def check(self, environment: EnvironmentConfig, group_size: int) -> None:
        """The penalty must be able to rise, and rewards must not be negative for `mean`."""
        super().check(environment, group_size)
        if self.overlong is None:
            return
        limit = self.overlong.limit or environment.longest_episode
        if not self.overlong.buffer <= limit <= environment.longest_episode:
            raise ValueError(
                f"algorithm.overlong.buffer {self.overlong.buffer} and limit {limit} do not fit "
                f"episodes of at most {environment.longest_episode} sampled tokens; the buffer may "
                "not be longer than the limit, nor the limit longer than an episode"
            )
        if self.scale == "mean":
            raise ValueError(
                "algorithm.scale 'mean' divides by the mean reward, which algorithm.overlong can "
                "make negative; leave one of them out"
            )


class ReinforceConfig(SingleScoreConfig):
    """REINFORCE++ (arXiv 2501.03262): rewards are compared over the whole batch."""

    method: Literal["reinforce++"] = "reinforce++"
    baseline: Literal["batch", "group"] = "batch"
    """`batch` subtracts the mean over the training step, `group` that of the group. Both divide by
    the deviation over the training step."""

    @property
    def normalisation(self) -> bool | Literal["whiten"]:
        """See AlgorithmConfig."""
        return "whiten" if self.baseline == "batch" else True

    def check(self, environment: EnvironmentConfig, group_size: int) -> None:
        """A group of one is enough where the batch is the baseline."""
        super().check(environment, group_size if self.baseline == "group" else 2)


class LcpoConfig(SingleScoreConfig):
    """GRPO on a reward for being right and for a target length (LCPO-exact, arXiv 2503.04697)."""

    method: Literal["lcpo"] = "lcpo"
    target_length: PositiveInt
    """Sampled tokens, thought and answer together, that a response should have."""
    alpha: PositiveFloat = 3e-4
    """Subtracted from the reward for every token more or less."""
    scale: Literal["none", "std", "leave_one_out"] = "std"
    """As for `grpo`."""

    def check(self, environment: EnvironmentConfig, group_size: int) -> None:
        """An episode must be able to have the target length."""
        super().check(environment, group_size)
        if self.target_length > environment.longest_episode:
            raise ValueError(
                f"algorithm.target_length {self.target_length} is never reached: the longest "
                f"episode has {environment.longest_episode} sampled tokens; make it smaller"
            )


class DdcaConfig(SingleScoreConfig):
    """GRPO with an advantage for short right answers (arXiv 2602.02099)."""

    method: Literal["ddca"] = "ddca"
    beta: NonNegativeFloat = 0.2
    """Weight of the length advantage; 0 leaves GRPO with the population's standard deviation."""


class DlerConfig(SingleScoreConfig):
    """GRPO in which a response that is too long earns nothing (arXiv 2510.15110).

    The paper also raises the upper clip, for instance with `loss.clip_high: 0.28`.
    """

    normalised_over_batch = True

    method: Literal["dler"] = "dler"
    length_limit: PositiveInt
    """Most sampled tokens, thought and answer together, of a response that earns anything."""
    easy_limits: tuple[tuple[Annotated[float, Field(gt=0, le=1)], PositiveInt], ...] = ()
    """Shorter limits for easy problems, as in [[0.5, 40], [0.9, 30]]: a group has the limit 40 if
    at least half of its responses are right, and 30 if at least 0.9 are."""

    @model_validator(mode="after")
    def _shorter_where_easier(self) -> DlerConfig:
        steps = [(0.0, self.length_limit), *self.easy_limits]
        for (share, limit), (next_share, next_limit) in pairwise(steps):
            if next_share <= share or next_limit >= limit:
                raise ValueError(
                    f"easy_limits has [{next_share}, {next_limit}] after a limit of {limit} from "
                    f"the share {share} on; give increasing shares with ever shorter limits, all "
                    f"below length_limit {self.length_limit}"
                )
        return self

    def check(self, environment: EnvironmentConfig, group_size: int) -> None:
        """Some episode must be able to exceed the limit."""
        super().check(environment, group_size)
        if self.length_limit >= environment.longest_episode:
            raise ValueError(
                f"algorithm.length_limit {self.length_limit} is never exceeded: the longest "
                f"episode has {environment.longest_episode} sampled tokens; make the limit "
                "smaller, or use method 'grpo'"
            )


class DistillConfig(AlgorithmConfig):
    """Learning from the teacher of `distillation` alone: scores are measured and not trained."""

    method: Literal["distill"] = "distill"

    def check(self, environment: EnvironmentConfig, group_size: int) -> None:
        """Nothing is compared within a group, so any size of it will do."""


class SgrpoConfig(AlgorithmConfig):
    """Serial-group policy optimisation (arXiv 2505.07686): the exits of one thought are the group.

    The exits are `environment.budgets`. It has no keys of its own.
    """

    method: Literal["sgrpo"] = "sgrpo"

    def check(self, environment: EnvironmentConfig, group_size: int) -> None:
        """A thought must have several exits with one answer each; one thought is enough."""
        assert isinstance(environment, AnytimeConfig)
        budgets, answers = environment.budgets, environment.answers
        if len(budgets) < 2 or answers != 1:
            raise ValueError(
                "algorithm.method 'sgrpo' compares one answer at each of several budgets, but "
                f"environment has {len(budgets)} budgets x {answers} answers; set "
                "environment.answers to 1 and environment.budgets to two or more"
            )


class TurnGrpoConfig(AlgorithmConfig):
    """GRPO over episodes of several turns; the members of a group share the episode's seed."""

    method: Literal["turn_grpo"] = "turn_grpo"
    credit: Literal["episode", "turn"] = "turn"
    """Return of a reply: the whole episode's (as published), or the rewards from it on."""
    discount: Share = 1.0
    """Factor per turn on rewards that come later, 0 for none of them; only with credit `turn`."""
    scale: Literal["none", "std"] = "none"
    """`std` divides by the standard deviation of the returns that are compared."""

    @model_validator(mode="after")
    def _discounts_something(self) -> TurnGrpoConfig:
        if self.credit == "episode" and self.discount != 1:
            raise ValueError(
                f"algorithm.discount {self.discount} needs algorithm.credit 'turn'; with 'episode' "
                "every reply gets the same return"
            )
        return self


class ReaConfig(AlgorithmConfig, ShapingConfig):
    """REA-RL: originals and revisions in one group. Nothing but accuracy is left of it with
    `length: none`, `reflection: null` and no revision: that is GRPO."""

    method: Literal["rea"] = "rea"
    tail_loss: Literal["none", "mean", "max"] = "none"
    """Hold the removed tail once more against the thought, with the mean or the largest absolute
    advantage of the group (the released code takes it over the whole batch)."""


Algorithm = Annotated[
    BrpoConfig
    | DdcaConfig
    | DistillConfig
    | DlerConfig
    | GrpoConfig
    | LcpoConfig
    | ReaConfig
    | ReinforceConfig
    | SgrpoConfig
    | TurnGrpoConfig,
    Field(discriminator="method"),
]
