"""Every setting of the benchmark `rlsys eval economics`, with its default."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, PositiveInt, StringConstraints, model_validator

from rlsys.config.base import MAX_SEED, NonNegativeFloat, NonNegativeInt, Section
from rlsys.config.data import PromptConfig
from rlsys.config.economics import MAX_BUDGET, ArithmeticCorpus, EconomicsConfig
from rlsys.config.models import EndpointSection, EnginesConfig, ModelConfig

AllocatorName = Literal["uniform", "greedy_max", "difficulty_oracle", "bandit"]
ALLOCATORS: Final[tuple[AllocatorName, ...]] = (
    "uniform",
    "greedy_max",
    "difficulty_oracle",
    "bandit",
)

AGENT_TEMPLATE: Final = (
    "{questions_remaining} problems share {remaining} tokens, everything you write included: about "
    "{per_question} for this one. Think no longer than it needs, and put the final answer in "
    "\\boxed{}.\n\n{problem}"
)
"""The user turn for language models. It may contain {problem}, {remaining}, {questions_remaining},
{per_question}, {number} and {problems}."""

AgentName = Annotated[str, StringConstraints(pattern=r"^[\w.:/-]+$")]


class EndpointAgentConfig(EndpointSection):
    """A model behind an endpoint. It gets one user message per question, without earlier turns."""

    name: AgentName
    """The name of this agent in `agents`."""
    template: str = AGENT_TEMPLATE
    temperature: NonNegativeFloat = 0.0
    max_tokens: PositiveInt = 512
    """Most tokens of a reply; in hard mode never more than the remaining budget."""
    concurrency: PositiveInt = 8
    """Episodes played at the same time, with one request each."""


class LocalModelConfig(Section):
    """A model that vLLM engines of rlsys run. It gets one prompt per question."""

    name: AgentName
    """The name of this agent in `agents`."""
    model: ModelConfig = ModelConfig()
    prompt: PromptConfig = PromptConfig(template=AGENT_TEMPLATE)
    think_end: str | None = None
    """The text that ends a thought. All tokens are charged, only the text after it is graded."""
    temperature: NonNegativeFloat = 0.0
    max_tokens: PositiveInt = 512
    """Most sampled tokens of a reply; in hard mode never more than the remaining budget."""
    generation: EnginesConfig = EnginesConfig()
    concurrency: PositiveInt = 64
    """Episodes played at the same time."""


class EconomicsEvaluationConfig(Section):
    """Agents that play the same episodes of the economics environment."""

    agents: tuple[AgentName, ...] = ALLOCATORS
    """Agents that play: `uniform`, `greedy_max`, `difficulty_oracle`, `bandit`, and names defined
    under `endpoints` and `models`. No other agent is started."""
    environment: EconomicsConfig = EconomicsConfig(
        reveal_type=True, corpus=ArithmeticCorpus(held_out=True)
    )
    """The environment in this process. With `url`: the settings that the server must have."""
    url: str | None = None
    """An economics server to play on instead of an environment in this process."""
    total_budget: Annotated[int, Field(gt=0, le=MAX_BUDGET)] | None = None
    """Sent with every reset; None leaves the budget to the environment."""
    tokenizer_name: str | None = None
    """Sent with every reset. It counts the answers and, without total_budget, sets the budget."""
    episodes: PositiveInt = 100
    seed: Annotated[int, Field(ge=0)] = 42
    """Episode e of every agent has the seed `seed` + e."""
    warmup: NonNegativeInt = 100
    """Episodes that the bandit plays before its results count; their seeds follow the others."""
    solver: Literal["adder", "filler"] = "adder"
    """Writes the answers for the allocators: `adder` computes generated sums, `filler` writes
    filler words and never knows the answer."""
    min_allocation: PositiveInt = 10
    max_allocation: PositiveInt = 800
    """Fewest and most tokens that an allocator may grant one question."""
    endpoints: tuple[EndpointAgentConfig, ...] = ()
    models: tuple[LocalModelConfig, ...] = ()
    out: Path = Path("runs/economics")
    """Folder for results.json and the plots."""

    @model_validator(mode="after")
    def _consistent(self) -> EconomicsEvaluationConfig:
        if self.min_allocation > self.max_allocation:
            raise ValueError(
                f"min_allocation {self.min_allocation} exceeds max_allocation {self.max_allocation}"
            )
        if self.seed + self.episodes + self.warmup - 1 > MAX_SEED:
            raise ValueError(
                f"seed {self.seed} leaves too few seeds up to {MAX_SEED} for {self.episodes} "
                f"episodes and {self.warmup} warmup episodes; choose a smaller one"
            )
        known = [*ALLOCATORS, *(e.name for e in self.endpoints), *(m.name for m in self.models)]
        for name in known:
            if known.count(name) > 1:
                raise ValueError(f"two agents are called {name!r}; rename one of them")
        for name in self.agents:
            if name not in known:
                raise ValueError(
                    f"agents names {name!r}, which is none of {', '.join(known)}; configure it "
                    "under endpoints or models"
                )
            if self.agents.count(name) > 1:
                raise ValueError(f"agents names {name!r} twice; name it once")
        return self

    @property
    def seeds(self) -> range:
        """Seeds of the evaluated episodes."""
        return range(self.seed, self.seed + self.episodes)

    @property
    def warmup_seeds(self) -> range:
        """Seeds of the bandit's warmup episodes; empty if the bandit does not play."""
        first = self.seed + self.episodes
        return range(first, first + (self.warmup if "bandit" in self.agents else 0))

    @property
    def asked_allocators(self) -> tuple[AllocatorName, ...]:
        """Allocators that `agents` names."""
        return tuple(name for name in ALLOCATORS if name in self.agents)

    @property
    def asked_endpoints(self) -> tuple[EndpointAgentConfig, ...]:
        """Endpoints that `agents` names."""
        return tuple(endpoint for endpoint in self.endpoints if endpoint.name in self.agents)

    @property
    def asked_models(self) -> tuple[LocalModelConfig, ...]:
        """Local models that `agents` names."""
        return tuple(model for model in self.models if model.name in self.agents)
