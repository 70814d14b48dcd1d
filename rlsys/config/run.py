"""The whole configuration of a training run: typed, frozen, unknown keys refused.

Derived numbers are properties with the formula in the docstring. What needs the model or the
cluster to be checked is checked in rlsys.launch.preflight; the rest is checked here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt, field_validator, model_validator

from rlsys.config.agents import AgentConfig
from rlsys.config.algorithms import Algorithm, BrpoConfig
from rlsys.config.base import Fraction, NonNegativeInt, Section, check_budgets
from rlsys.config.cluster import ClusterConfig
from rlsys.config.data import DataConfig
from rlsys.config.dialogues import DialogueSection, EconomicsDialogue, OpenEnvDialogue
from rlsys.config.distillation import DistillationConfig
from rlsys.config.environments import AnytimeConfig, ReflectionEpisodes, RevisionConfig
from rlsys.config.grading import GradingConfig
from rlsys.config.learner import BatchConfig, LearnerConfig
from rlsys.config.loss import LossConfig
from rlsys.config.models import GenerationConfig, ModelConfig
from rlsys.config.reporting import RunReportingConfig

Environment = Annotated[
    AnytimeConfig | ReflectionEpisodes | EconomicsDialogue | OpenEnvDialogue | AgentConfig,
    Field(discriminator="type"),
]


class SyncConfig(Section):
    """How new weights reach the engines."""

    transport: Literal["auto", "shm", "object_store", "ipc", "nccl"] = "auto"
    """auto: CUDA IPC on a shared GPU, NCCL between cards; with a learner or engines on the CPU,
    shared memory if all are on one node, and else Ray's object store."""
    bucket_mib: PositiveInt = 256
    deadline_s: PositiveFloat = 120.0
    canary_prompts: PositiveInt = 4
    """Fixed sequences whose log-probs engine and learner must agree on after each sync."""
    canary_tolerance: PositiveFloat | None = None
    """Largest mean absolute gap in nats; None takes 1e-3 in float32 on the CPU, 1e-2 in float32 on
    a GPU, 0.2 in bfloat16."""


class RolloutConfig(Section):
    """Environment actors and how far generation may run ahead."""

    environment_actors: PositiveInt = 1
    max_staleness: NonNegativeInt | None = None
    """Versions a trained token may be behind the weights it trains; 0 is the synchronous run. None
    is 1 if learner and engines are on GPUs, so that neither waits for the other, and 0 if not."""


class EvaluationConfig(Section):
    """The anytime curve on the held-out problems."""

    every: NonNegativeInt = 0
    """Steps between evaluations during the run; 0 only before and after."""
    problems: PositiveInt = 256
    budgets: tuple[PositiveInt, ...] | None = None
    """Budgets of the curve; None takes the environment's."""
    samples: PositiveInt = 1
    """Episodes per problem."""
    answers: PositiveInt = 1
    """Answers per cut."""
    temperature: PositiveFloat = 1.0
    top_p: Fraction = 1.0
    """Sample only from the most likely tokens whose probabilities add up to this. Training has no
    such key: the learner's log-probs are those of all tokens."""
    reference: Path | None = None
    """Folder of a run or evaluation whose first numbers token ratios are taken against, for
    instance of the starting model; None takes this run's own."""

    @model_validator(mode="after")
    def _increasing(self) -> EvaluationConfig:
        if self.budgets is not None:
            check_budgets(self.budgets, "evaluation.budgets")
        return self


class CheckpointConfig(Section):
    """What survives a kill."""

    every: NonNegativeInt = 50
    """Steps between checkpoints; 0 only at the end."""
    keep: PositiveInt = 2
    """Newest whole checkpoints kept; damaged ones are not counted. With 1, a run whose newest is
    damaged has nothing to go back to."""
    mirror: str | None = None
    """URL of a folder (`s3://bucket/runs/demo`, `gs://`, any of fsspec) that gets a copy of run_dir
    after every checkpoint. A run whose run_dir has less goes on from there."""

    @field_validator("mirror")
    @classmethod
    def _is_url(cls, value: str | None) -> str | None:
        if value is not None and "://" not in value:
            raise ValueError(f"mirror {value!r} is no URL; write it like s3://bucket/runs/demo")
        return value


class WatchdogConfig(Section):
    """What ends a run that makes no progress."""

    progress_s: PositiveFloat = 1800.0
    """Longest time without a training step, a finished group or a finished request."""


class RunConfig(Section):
    """Everything `rlsys train` needs."""

    name: str = "run"
    run_dir: Path = Path("runs/run")
    """Folder of everything the run leaves behind; an existing one is resumed."""
    seed: NonNegativeInt = 0
    steps: PositiveInt = 100
    """Training steps of the whole run."""
    epochs: PositiveInt | None = None
    """Passes over the training problems, which replace `steps`: this number times the problems
    divided by batch.problems, rounded down. None leaves `steps` as it is."""
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    environment: Environment = AnytimeConfig()
    """How an episode is rolled out. `type` may also be the import path of a class outside rlsys, as
    in my_package.my_env:MyEnvironment."""
    algorithm: Algorithm = BrpoConfig()
    """How scores become advantages. `method` may also be the import path of a class outside rlsys,
    as in my_package.my_method:MyMethod."""
    distillation: DistillationConfig | None = None
    """A teacher whose log-probs are a further advantage of every token; None has none."""
    loss: LossConfig = LossConfig()
    batch: BatchConfig = BatchConfig()
    learner: LearnerConfig = LearnerConfig()
    generation: GenerationConfig = GenerationConfig()
    sync: SyncConfig = SyncConfig()
    rollout: RolloutConfig = RolloutConfig()
    grading: GradingConfig = GradingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    watchdog: WatchdogConfig = WatchdogConfig()
    reporting: RunReportingConfig = RunReportingConfig()
    cluster: ClusterConfig = ClusterConfig()

    @model_validator(mode="after")
    def _consistent(self) -> RunConfig:
        algorithm, environment = self.algorithm, self.environment
        if ":" not in algorithm.method and algorithm.method not in environment.methods:
            raise ValueError(
                f"algorithm.method {algorithm.method!r} does not fit environment.type "
                f"{environment.type!r}; use {' or '.join(map(repr, environment.methods))}"
            )
        algorithm.check(environment, self.batch.group_size)
        self._check_responses()
        self._check_normalisation()
        if self.epochs is not None and isinstance(environment, DialogueSection):
            raise ValueError(
                f"epochs {self.epochs} needs problems of `data`, and the episodes of "
                f"environment.type {environment.type!r} are drawn without end; use steps"
            )
        self._check_grading()
        self._check_cache()
        self._check_teacher()
        return self

    def _check_responses(self) -> None:
        """Refuse a loss over whole responses where an episode is several."""
        scores, kind = self.environment.scores_per_episode, self.environment.type
        for key, value, others in (
            ("surrogate", "gspo", "'ppo' or 'cispo'"),
            ("importance", "sequence_truncate", "'truncate', 'icepop' or 'sequence_mask'"),
        ):
            if getattr(self.loss, key) == value and scores != 1:
                raise ValueError(
                    f"loss.{key} {value!r} needs episodes that are one response, and an episode of "
                    f"environment.type {kind!r} has up to {scores} scores; use {others}"
                )
        if self.loss.kl_in == "reward" and self.revision is not None:
            raise ValueError(
                "loss.kl_in 'reward' does not fit environment.revision: a token of the thought "
                "would pay for two responses at once; use kl_in 'loss'"
            )

    def _check_normalisation(self) -> None:
        """Refuse settings that need one baseline over the batch, or must not have one."""
        whitened = self._normalisation == "whiten"
        if self.algorithm.normalisation == "whiten" and not whitened:
            raise ValueError(
                f"loss.normalise_advantages {self.loss.normalise_advantages} leaves "
                f"algorithm.method {self.algorithm.method!r} without a baseline; leave it out, or "
                "set algorithm.baseline to 'group'"
            )
        if whitened and self.batch.dynamic_sampling is not None:
            raise ValueError(
                "batch.dynamic_sampling drops groups whose advantages are all 0 before the batch "
                "is complete, and 'whiten' subtracts a mean of the complete batch; use "
                "loss.normalise_advantages true, with algorithm.baseline 'group' for 'reinforce++'"
            )

    def _check_cache(self) -> None:
        """Refuse a rounded cache whose distance to the learner nothing corrects."""
        if self.generation.kv_cache_dtype == "fp8" and self.loss.importance == "none":
            raise ValueError(
                "generation.kv_cache_dtype 'fp8' needs the importance weight between engine and "
                "learner, and loss.importance is 'none'; use 'truncate', or the cache 'auto'"
            )

    def _check_grading(self) -> None:
        """Refuse Countdown problems with a policy that compares answers with a gold value."""
        policy = self.grading.policy
        for key, source in (("train", self.data.train), ("evaluation", self.data.evaluation)):
            if source.source == "countdown" and policy != "countdown":
                raise ValueError(
                    f"data.{key}.source 'countdown' needs grading.policy 'countdown', not "
                    f"{policy!r}: an answer is right if it reaches the target, however it is "
                    "written"
                )

    @model_validator(mode="after")
    def _fill_staleness(self) -> RunConfig:
        """Replace a missing rollout.max_staleness, so that the record of a run has the number."""
        if self.rollout.max_staleness is None:
            on_gpus = self.learner.gpus_per_rank > 0 and self.generation.gpus_per_engine > 0
            filled = self.rollout.model_copy(update={"max_staleness": int(on_gpus)})
            object.__setattr__(self, "rollout", filled)  # the section is frozen from here on
        return self

    @property
    def max_staleness(self) -> int:
        """rollout.max_staleness, which every checked configuration has."""
        assert self.rollout.max_staleness is not None
        return self.rollout.max_staleness

    def _check_teacher(self) -> None:
        """Refuse to distill without a teacher, and what would drop the teacher's signal."""
        if self.algorithm.method == "distill" and self.distillation is None:
            raise ValueError(
                "algorithm.method 'distill' learns from a teacher only, and there is none; set "
                "distillation.teacher.path, or use another method"
            )
        if self.distillation is not None and self.batch.dynamic_sampling is not None:
            raise ValueError(
                "batch.dynamic_sampling drops groups whose scores give no signal, and with "
                "distillation they have the teacher's; leave one of them out"
            )
        if self.distillation is not None and self.revision is not None:
            raise ValueError(
                "distillation does not fit environment.revision: the policy did not choose where a "
                "revised thought ends; leave one of them out"
            )

    @property
    def evaluation_budgets(self) -> tuple[int, ...]:
        """evaluation.budgets, or the environment's."""
        return self.evaluation.budgets or self.environment.curve_budgets

    @property
    def revision(self) -> RevisionConfig | None:
        """How thoughts are revised; None in a run that does not revise."""
        return self.environment.revised_by

    @property
    def resolved_loss(self) -> LossConfig:
        """loss, with its `constant` and `normalise_advantages` filled in."""
        return self.loss.model_copy(
            update={
                "constant": self.loss.constant or self.environment.longest_episode,
                "normalise_advantages": self._normalisation,
            }
        )

    @property
    def _normalisation(self) -> bool | Literal["whiten"]:
        """loss.normalise_advantages, or what the method asks for."""
        chosen = self.loss.normalise_advantages
        return self.algorithm.normalisation if chosen is None else chosen

    @property
    def canary_tolerance(self) -> float:
        """sync.canary_tolerance, or the default of the model's precision."""
        if self.sync.canary_tolerance is not None:
            return self.sync.canary_tolerance
        if self.model.dtype == "bfloat16":
            # Rounding alone is 0.04 to 0.11 (measured), most where a model is sure of its tokens.
            # Weights that arrived wrong are off by whole nats.
            return 0.2
        # On GPUs the engine's float32 attention multiplies in TF32.
        return 1e-2 if self.generation.gpus_per_engine else 1e-3
