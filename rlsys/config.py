"""The whole configuration of a run: typed, frozen, unknown keys refused, every default here.

Derived numbers are properties with the formula in the docstring. What needs the model or the
cluster to be checked is checked in rlsys.orchestration.preflight; the rest is checked here.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from rlsys.config_base import Fraction, NonNegativeFloat, NonNegativeInt, Section, Share
from rlsys.config_economics import ArithmeticCorpus, Corpus, EconomicsConfig
from rlsys.config_parts import EnginesConfig, ThoughtSection
from rlsys.config_parts import ModelConfig as ModelConfig
from rlsys.config_reflection import ReaConfig, ReflectionEpisodes, RevisionConfig, ShapingConfig


class ArithmeticData(Section):
    """Problems from rlsys' own generator of multi-step arithmetic."""

    source: Literal["arithmetic"] = "arithmetic"
    difficulty: tuple[PositiveInt, PositiveInt] = (6, 6)
    """Fewest and most numbers joined in one problem."""
    seed: NonNegativeInt = 0
    """Seed of the stream of problems; evaluation uses another one than training."""
    size: PositiveInt = 100_000
    """Problems in one epoch."""
    held_out: bool = False
    """Draw from the quarter of all problems kept for evaluation, which training never sees."""

    @model_validator(mode="after")
    def _ordered(self) -> ArithmeticData:
        low, high = self.difficulty
        if not 2 <= low <= high:
            raise ValueError(f"difficulty ({low}, {high}) must be 2 <= fewest <= most")
        return self


class FileData(Section):
    """Problems from JSONL (plain or gzip) or Parquet files, one row each."""

    source: Literal["file"] = "file"
    path: tuple[Path, ...] = Field(min_length=1)
    """Files, read in this order; .jsonl, .jsonl.gz, .json or .parquet."""
    problem_column: str = "problem"
    answer_column: str = "answer"
    id_column: str | None = None
    """Column with a unique id; None numbers the rows."""
    difficulty_column: str | None = None
    offset: NonNegativeInt = 0
    """Rows skipped at the start (a held-out set and a training set from one file)."""
    limit: PositiveInt | None = None
    """Rows used after the offset; None takes all."""


class HubData(Section):
    """Problems from a Hugging Face data set, through `datasets.load_dataset`."""

    source: Literal["hub"] = "hub"
    name: str
    subset: str | None = None
    split: str = "train"
    problem_column: str = "problem"
    answer_column: str = "answer"
    id_column: str | None = None
    difficulty_column: str | None = None
    offset: NonNegativeInt = 0
    limit: PositiveInt | None = None


Source = Annotated[ArithmeticData | FileData | HubData, Field(discriminator="source")]


class PromptConfig(Section):
    """How a problem becomes the prompt's token ids."""

    template: str = "{problem}"
    """Text of the user turn; must contain {problem}."""
    system: str | None = None
    """Text of a system turn, if any."""
    examples: tuple[tuple[str, str], ...] = ()
    """Worked (user, assistant) turns put before the question: few-shot prompting."""
    prefill: str = ""
    """Text appended after the generation prompt, for instance `<think>\\n`."""
    chat_template: bool = True
    """Render through the tokenizer's chat template; False joins the texts as they are."""
    max_tokens: PositiveInt = 1024
    """Longer prompts are dropped and counted."""

    @model_validator(mode="after")
    def _has_place(self) -> PromptConfig:
        if "{problem}" not in self.template:
            raise ValueError(f"prompt template {self.template!r} must contain {{problem}}")
        return self


class DataConfig(Section):
    """Training and held-out problems and their prompt."""

    train: Source = ArithmeticData()
    evaluation: Source = ArithmeticData(seed=1_000_003, size=256, held_out=True)
    prompt: PromptConfig = PromptConfig()
    shuffle: bool = True
    """Deterministic shuffle by the run's seed, anew every epoch."""


class AnytimeConfig(ThoughtSection):
    """Thought up to the largest budget, cut at every budget, answers at every cut."""

    type: Literal["anytime"] = "anytime"
    budgets: tuple[PositiveInt, ...] = (16, 32, 48, 64)
    """Increasing numbers of thought tokens; one reward slot each."""
    answers: PositiveInt = 4
    """Answers sampled per slot (A)."""

    @model_validator(mode="after")
    def _increasing(self) -> AnytimeConfig:
        check_budgets(self.budgets, "environment.budgets")
        return self

    @property
    def slots(self) -> int:
        """Scores per episode: budgets x answers."""
        return len(self.budgets) * self.answers

    @property
    def longest_thought(self) -> int:
        """The largest budget."""
        return self.budgets[-1]


class DialogueSection(Section):
    """What all environments of several turns share: one growing sequence, a reply per turn."""

    reply_tokens: PositiveInt = 512
    """Most sampled tokens of one reply, thought included."""
    think_end: str | None = None
    """The token that ends a thought; a reply's text after it is what the environment sees. None for
    a model that does not think."""
    attempts: PositiveInt = 3
    """How often an episode is begun anew when its environment is lost in the middle of it."""

    @property
    def most_turns(self) -> int:
        """Most replies of an episode."""
        raise NotImplementedError

    @property
    def most_sampled(self) -> int:
        """Most sampled tokens of an episode."""
        raise NotImplementedError


class ConnectionConfig(Section):
    """How an environment behind a URL is talked to."""

    max_sessions: PositiveInt = 64
    """Sessions at once, of each environment actor; together no more than the server serves."""
    patience_s: PositiveFloat = 300.0
    """How long to try while the server does not answer; then the episode is lost."""
    message_timeout_s: PositiveFloat = 60.0
    """How long the answer to one message may take."""


class EconomicsDialogue(DialogueSection):
    """Problems that share one token budget (rlsys.environments.economics).

    `data.prompt.template` may show {remaining}, {questions_remaining}, {per_question}, {number} and
    {problems} beside {problem}.
    """

    type: Literal["economics"] = "economics"
    episode: EconomicsConfig = EconomicsConfig()
    """The environment that runs inside the environment actors."""
    evaluation_corpus: Corpus = ArithmeticCorpus(held_out=True)
    """Questions of the evaluation, in the place of episode.corpus."""
    url: str | None = None
    """A server of the environment (`rlsys serve-env`), used in place of one inside the actors. Of
    `episode`, only problems, mode and total_budget are then used, and should be the server's."""
    evaluation_url: str | None = None
    """The server of the evaluation, with held-out questions; None takes `url`."""
    tokenizer_name: Annotated[str, Field(min_length=1)] | None = None
    """Asked of a server that does not trust its clients: it counts with this tokenizer, which
    should be the policy's, and without `episode.total_budget` it sets the budget by it, too. A
    trusting one charges sampled ids and needs none."""
    connection: ConnectionConfig = ConnectionConfig()

    @model_validator(mode="after")
    def _counts_where_it_is_played(self) -> EconomicsDialogue:
        given = {"tokenizer": self.episode.tokenizer, "trusted": self.episode.trusted}
        for name, value in given.items():
            if value:
                raise ValueError(
                    f"environment.episode.{name} {value!r} has no effect: training charges sampled "
                    "ids, and a server counts as it was started; leave it out"
                )
        if self.tokenizer_name is not None and self.url is None:
            raise ValueError(
                f"environment.tokenizer_name {self.tokenizer_name!r} is for a server; in the "
                "actors sampled ids are charged: leave it out, or give a url"
            )
        return self

    @property
    def most_turns(self) -> int:
        """Most replies of an episode."""
        return self.episode.problems

    @property
    def most_sampled(self) -> int:
        """Most sampled tokens of an episode."""
        replies = self.most_turns * self.reply_tokens
        if self.episode.mode == "soft" or self.episode.total_budget is None:
            return replies
        return min(replies, self.episode.total_budget)


class OpenEnvDialogue(DialogueSection):
    """Anybody's OpenEnv environment that shows a text and takes a text."""

    type: Literal["openenv"] = "openenv"
    url: str
    """Where it is served, for instance http://127.0.0.1:8000."""
    evaluation_url: str | None = None
    """The server of the evaluation; None takes `url`."""
    observation_field: str
    """Field of an observation that becomes the user turn."""
    action_field: str
    """Field of an action that takes the visible part of a reply."""
    remaining_field: str | None = None
    """Field with the tokens that may still be sampled, where there is a shared budget."""
    reset_options: dict[str, str | int | float | bool] = Field(default_factory=dict)
    """Sent with every reset beside the seed."""
    max_turns: PositiveInt = 10
    """Replies after which an episode that has not ended is left."""
    connection: ConnectionConfig = ConnectionConfig()

    @property
    def most_turns(self) -> int:
        """Most replies of an episode."""
        return self.max_turns

    @property
    def most_sampled(self) -> int:
        """Most sampled tokens of an episode."""
        return self.most_turns * self.reply_tokens


def check_budgets(budgets: tuple[int, ...], place: str) -> None:
    """Raise ValueError unless `budgets` is a non-empty strictly increasing tuple."""
    if not budgets or any(a >= b for a, b in pairwise(budgets)):
        raise ValueError(f"{place} {list(budgets)} must be increasing, for instance [16, 32, 64]")


class BrpoConfig(Section):
    """Budget-relative policy optimisation (arXiv 2505.13438)."""

    method: Literal["brpo"] = "brpo"
    prior: Literal["base", "uniform", "linear"] = "uniform"
    """Weight of each budget in the thought's return (Section 3.1)."""
    mode: Literal["brpo", "v1only", "v2only", "none", "notrain"] = "brpo"
    """Baseline of the thought: budget-relative, one of its halves, none, or no training."""
    coefficients: Literal["index", "budget"] = "index"
    """Mix of the two baselines by slot index (the code) or by b/b_m (Figure 1)."""
    answer_method: Literal["brpo", "grpo"] = "brpo"
    """Train every answer against its siblings, or only the last one of the full budget."""
    summary_weight: NonNegativeFloat = 1.0
    """Factor on answer tokens: 1.0 is the published code, 1/(budgets * answers) is Eq. 10."""
    shaping: ShapingConfig | None = None
    """Rewards of REA-RL on top: their deviation from the group's mean is added to the advantage of
    all tokens of a thought. None is BRPO as published."""


class GrpoConfig(Section):
    """Group-relative policy optimisation: one answer, one budget, one advantage per episode."""

    method: Literal["grpo"] = "grpo"
    scale: Literal["none", "std"] = "none"
    """`std` divides by the group's standard deviation (GRPO), `none` does not (Dr. GRPO)."""


class TurnGrpoConfig(Section):
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


Algorithm = Annotated[
    BrpoConfig | GrpoConfig | ReaConfig | TurnGrpoConfig, Field(discriminator="method")
]
Environment = Annotated[
    AnytimeConfig | ReflectionEpisodes | EconomicsDialogue | OpenEnvDialogue,
    Field(discriminator="type"),
]


class LossConfig(Section):
    """The clipped surrogate and what is added to it."""

    clip_low: Fraction = 0.2
    clip_high: PositiveFloat = 0.2
    aggregation: Literal["constant", "token_mean", "sequence_mean"] = "constant"
    """Divide by episodes x `constant`, by trained tokens, or by each episode's own tokens."""
    constant: PositiveInt | None = None
    """Tokens per episode that `constant` divides by; None takes the largest possible episode."""
    kl_coefficient: NonNegativeFloat = 0.0
    """k3 estimate of the KL divergence to the frozen starting policy."""
    entropy_coefficient: NonNegativeFloat = 0.0
    importance_cap: PositiveFloat = 2.0
    """Truncation of the importance weight between engine and learner (TIS)."""


class BatchConfig(Section):
    """One unit: problems x group_size episodes, each with budgets x answers scores."""

    problems: PositiveInt = 32
    """Problems (groups) per training step."""
    group_size: PositiveInt = 8
    """Episodes per problem (G)."""
    optimizer_steps: PositiveInt = 1
    """Optimizer steps per training step; must divide `problems`."""

    @property
    def episodes(self) -> int:
        """problems * group_size."""
        return self.problems * self.group_size

    @model_validator(mode="after")
    def _divides(self) -> BatchConfig:
        if self.problems % self.optimizer_steps:
            raise ValueError(
                f"batch.problems {self.problems} must be a multiple of "
                f"batch.optimizer_steps {self.optimizer_steps}"
            )
        return self


class OptimizerConfig(Section):
    """AdamW and its schedule."""

    learning_rate: NonNegativeFloat = 1e-4
    betas: tuple[Fraction, Fraction] = (0.9, 0.95)
    epsilon: PositiveFloat = 1e-8
    weight_decay: NonNegativeFloat = 0.0
    max_grad_norm: PositiveFloat = 1.0
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: NonNegativeInt = 0


Projection = Literal["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


class LoraConfig(Section):
    """Low-rank adapters beside frozen weights (arXiv 2106.09685), through peft.

    There is no dropout: the ratio to the policy that sampled must be 1 before the first step.
    """

    rank: PositiveInt = 16
    alpha: PositiveFloat = 32.0
    """The adapters' product is multiplied by alpha / rank."""
    target_modules: tuple[Projection, ...] = get_args(Projection)
    """Projections of every layer that get an adapter."""

    @model_validator(mode="after")
    def _trains_something(self) -> LoraConfig:
        if not self.target_modules:
            raise ValueError(
                "learner.lora.target_modules is empty; name at least one projection, for instance "
                "[q_proj, v_proj]"
            )
        return self


class LearnerConfig(Section):
    """The DeepSpeed group that trains the policy."""

    ranks: PositiveInt = 1
    gpus_per_rank: NonNegativeFloat = 0.0
    """1 for a card each, a fraction to share the card with an engine, 0 for the CPU."""
    cpus_per_rank: PositiveFloat = 1.0
    zero_stage: Literal[0, 1, 2, 3] = 1
    row_tokens: PositiveInt = 1024
    """Length of a packed row; grown to the longest tree if that is longer."""
    micro_batch_rows: PositiveInt = 8
    """Rows per forward and backward pass."""
    gradient_checkpointing: bool = False
    logits_chunk: PositiveInt = 1024
    """Tokens whose logits exist at once."""
    lora: LoraConfig | None = None
    """Train adapters only; None trains all weights."""
    optimizer: OptimizerConfig = OptimizerConfig()


class GenerationConfig(EnginesConfig):
    """The policy's engines."""

    temperature: PositiveFloat = 1.0


class SyncConfig(Section):
    """How new weights reach the engines."""

    transport: Literal["auto", "shm", "ipc", "nccl"] = "auto"
    """auto: shared memory on CPU, CUDA IPC on a shared card, NCCL between cards."""
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
    max_staleness: NonNegativeInt = 0
    """Versions a trained token may be behind the weights it trains; 0 is the synchronous run."""


class GradingConfig(Section):
    """The pool of killable processes that compares answers."""

    actors: PositiveInt = 1
    timeout_s: PositiveFloat = 5.0
    """Wall-clock limit of one comparison; a slower one is killed and INVALID."""
    max_characters: PositiveInt = 1024
    """Longer answers are INVALID."""


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
    """Newest checkpoints kept."""


class RunConfig(Section):
    """Everything `rlsys train` needs."""

    name: str = "run"
    run_dir: Path = Path("runs/run")
    """Folder of everything the run leaves behind; an existing one is resumed."""
    seed: NonNegativeInt = 0
    steps: PositiveInt = 100
    """Training steps of the whole run."""
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    environment: Environment = AnytimeConfig()
    algorithm: Algorithm = BrpoConfig()
    loss: LossConfig = LossConfig()
    batch: BatchConfig = BatchConfig()
    learner: LearnerConfig = LearnerConfig()
    generation: GenerationConfig = GenerationConfig()
    sync: SyncConfig = SyncConfig()
    rollout: RolloutConfig = RolloutConfig()
    grading: GradingConfig = GradingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()

    @model_validator(mode="after")
    def _consistent(self) -> RunConfig:
        algorithm, fitting = self.algorithm, _fitting_methods(self.environment)
        if algorithm.method not in fitting:
            raise ValueError(
                f"algorithm.method {algorithm.method!r} does not fit environment.type "
                f"{self.environment.type!r}; use {' or '.join(map(repr, fitting))}"
            )
        self._check_group_baseline()
        if isinstance(algorithm, GrpoConfig) and self.anytime.slots != 1:
            env = self.anytime
            raise ValueError(
                f"algorithm.method 'grpo' trains one answer at one budget, but environment has "
                f"{len(env.budgets)} budgets x {env.answers} answers; set environment.budgets to "
                f"[{env.budgets[-1]}] and environment.answers to 1, or use method 'brpo'"
            )
        return self

    def _check_group_baseline(self) -> None:
        algorithm = self.algorithm
        alone = isinstance(algorithm, BrpoConfig) and not (
            algorithm.mode in ("brpo", "v2only") or self.anytime.answers == 1
        )
        if self.batch.group_size == 1 and not alone:
            raise ValueError(
                f"batch.group_size 1 leaves algorithm.method {algorithm.method!r} without a group "
                "baseline; use 2 or more"
            )

    @property
    def anytime(self) -> AnytimeConfig:
        """The environment of a run whose episodes are anytime episodes."""
        assert isinstance(self.environment, AnytimeConfig)
        return self.environment

    @property
    def evaluation_budgets(self) -> tuple[int, ...]:
        """evaluation.budgets, or the environment's."""
        if self.evaluation.budgets is not None:
            return self.evaluation.budgets
        env = self.environment
        return (env.budget,) if isinstance(env, ReflectionEpisodes) else self.anytime.budgets

    @property
    def revision(self) -> RevisionConfig | None:
        """How thoughts are revised, in a run that does it."""
        env = self.environment
        return env.revision if isinstance(env, ReflectionEpisodes) else None

    @property
    def longest_episode(self) -> int:
        """Most sampled tokens of an episode.

        Anytime: the last budget + slots x answer tokens. Reflection: the budget, an answer and a
        revised one. Dialogues: the budget, or all replies.
        """
        env = self.environment
        if isinstance(env, AnytimeConfig):
            return env.budgets[-1] + env.slots * env.answer_tokens
        if isinstance(env, ReflectionEpisodes):
            return env.budget + env.answer_tokens + env.revision_tokens
        return env.most_sampled

    @property
    def resolved_loss(self) -> LossConfig:
        """loss, with its `constant` filled in."""
        constant = self.loss.constant or self.longest_episode
        return self.loss.model_copy(update={"constant": constant})

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


def _fitting_methods(environment: Environment) -> tuple[str, ...]:
    """The methods that train an environment's episodes."""
    match environment:
        case AnytimeConfig():
            return ("brpo", "grpo")
        case ReflectionEpisodes():
            return ("rea",)
        case DialogueSection():
            return ("turn_grpo",)


class RpoConfig(Section):
    """The loss on pairs: DPO plus the likelihood of the chosen (arXiv 2404.19733)."""

    beta: PositiveFloat = 0.1
    """How strongly the policy is held to the starting policy."""
    alpha: NonNegativeFloat = 1.0
    """Weight of the likelihood of the chosen; 0 is plain DPO."""


class SftConfig(Section):
    """Everything `rlsys sft` needs: the same learner with the loss on response tokens.

    With data.source `preferences` the rows are pairs and the loss is that of `rpo`.
    """

    name: str = "sft"
    run_dir: Path = Path("runs/sft")
    seed: NonNegativeInt = 0
    steps: PositiveInt = 100
    model: ModelConfig = ModelConfig()
    data: SftData = Field(default_factory=lambda: ArithmeticTraces())
    rows_per_step: PositiveInt = 256
    rpo: RpoConfig = RpoConfig()
    """Used with data.source `preferences`."""
    learner: LearnerConfig = LearnerConfig()
    log_every: PositiveInt = 10


class TraceHabits(Section):
    """How arithmetic is written out in supervised traces (rlsys.data.traces)."""

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


class SupervisedFile(Section):
    """Supervised rows from files: a prompt (rendered through `prompt`) and a response."""

    source: Literal["file"] = "file"
    path: tuple[Path, ...] = Field(min_length=1)
    prompt_column: str = "problem"
    response_column: str = "response"
    prompt: PromptConfig = PromptConfig()
    max_tokens: PositiveInt = 2048
    """Longer rows are dropped and counted."""

    @property
    def columns(self) -> tuple[str, str]:
        """Columns of a row: prompt, response."""
        return self.prompt_column, self.response_column


class PreferenceFile(Section):
    """Pairs from files: a prompt, the response to prefer and the one to turn away from."""

    source: Literal["preferences"] = "preferences"
    path: tuple[Path, ...] = Field(min_length=1)
    prompt_column: str = "problem"
    chosen_column: str = "chosen"
    rejected_column: str = "rejected"
    prompt: PromptConfig = PromptConfig()
    max_tokens: PositiveInt = 2048
    """Pairs of which a prompt with its response is longer are dropped and counted."""

    @property
    def columns(self) -> tuple[str, str, str]:
        """Columns of a pair: prompt, chosen response, rejected response."""
        return self.prompt_column, self.chosen_column, self.rejected_column


SftData = Annotated[
    ArithmeticTraces | DialogueTraces | SupervisedFile | PreferenceFile,
    Field(discriminator="source"),
]
SftConfig.model_rebuild()
