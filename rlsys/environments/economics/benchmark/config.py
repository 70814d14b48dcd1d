"""Settings of `rlsys eval economics`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, PositiveInt, StringConstraints, model_validator

from rlsys.config import EndpointSection, EnginesConfig, ModelConfig, PromptConfig
from rlsys.config.base import NonNegativeFloat, NonNegativeInt, Section
from rlsys.config.economics import ArithmeticCorpus, EconomicsConfig
from rlsys.environments.economics.models import MAX_BUDGET, MAX_SEED

BASELINES: Final = ("uniform", "greedy_max", "difficulty_oracle", "bandit")

TEMPLATE: Final = (
    "{questions_remaining} problems share {remaining} tokens, everything you write included: about "
    "{per_question} for this one. Think no longer than it needs, and put the final answer in "
    "\\boxed{}.\n\n{problem}"
)
"""The user turn that models get: may show {problem}, {remaining}, {questions_remaining},
{per_question}, {number} and {problems}."""

Name = Annotated[str, StringConstraints(pattern=r"^[\w.:/-]+$")]


class EndpointConfig(EndpointSection):
    """A model behind an endpoint: one user message per question, no dialogue."""

    name: Name
    """What `agents` calls it."""
    template: str = TEMPLATE
    temperature: NonNegativeFloat = 0.0
    max_tokens: PositiveInt = 512
    """Most tokens of a reply; in hard mode no more than remain."""
    concurrency: PositiveInt = 8
    """Episodes, hence requests, at once."""


class LocalModelConfig(Section):
    """A model that engines of rlsys run: one prompt per question, no dialogue."""

    name: Name
    """What `agents` calls it."""
    model: ModelConfig = ModelConfig()
    prompt: PromptConfig = PromptConfig(template=TEMPLATE)
    think_end: str | None = None
    """The token that ends a thought; only the text after it is graded, all of it is charged."""
    temperature: NonNegativeFloat = 0.0
    max_tokens: PositiveInt = 512
    """Most sampled tokens of a reply; in hard mode no more than remain."""
    generation: EnginesConfig = EnginesConfig()
    concurrency: PositiveInt = 64
    """Episodes at once."""


class EconomicsEvaluationConfig(Section):
    """Agents that play the same episodes of the economics environment."""

    agents: tuple[Name, ...] = BASELINES
    """Of `uniform`, `greedy_max`, `difficulty_oracle`, `bandit`, and the names of `endpoints` and
    `models`. Nothing else is started."""
    environment: EconomicsConfig = EconomicsConfig(
        reveal_type=True, corpus=ArithmeticCorpus(held_out=True)
    )
    """Played in this process; with `url`, what the server was started with."""
    url: str | None = None
    """An economics server to play on instead."""
    total_budget: Annotated[int, Field(gt=0, le=MAX_BUDGET)] | None = None
    """Sent with every reset; None leaves the budget to the environment."""
    tokenizer_name: str | None = None
    """Sent with every reset: counts the answers and, without total_budget, sizes the budget."""
    episodes: PositiveInt = 100
    seed: Annotated[int, Field(ge=0)] = 42
    """Episode e of every agent has the seed `seed` + e."""
    warmup: NonNegativeInt = 100
    """Episodes that the bandit learns from before it counts, on seeds behind the evaluated ones."""
    solver: Literal["adder", "filler"] = "adder"
    """Who answers for the allocators: `adder` works generated sums out, `filler` knows nothing."""
    min_allocation: PositiveInt = 10
    max_allocation: PositiveInt = 800
    """Tokens that an allocator may grant a question."""
    endpoints: tuple[EndpointConfig, ...] = ()
    models: tuple[LocalModelConfig, ...] = ()
    out: Path = Path("runs/economics")
    """Folder of results.json and the plots."""

    @model_validator(mode="after")
    def _consistent(self) -> EconomicsEvaluationConfig:
        if self.min_allocation > self.max_allocation:
            raise ValueError(
                f"min_allocation {self.min_allocation} exceeds max_allocation {self.max_allocation}"
            )
        if self.seed + self.episodes + self.warmup - 1 > MAX_SEED:
            raise ValueError(f"seed {self.seed} leaves too few seeds up to {MAX_SEED}")
        known = [*BASELINES, *(e.name for e in self.endpoints), *(m.name for m in self.models)]
        for name in known:
            if known.count(name) > 1:
                raise ValueError(f"two agents are called {name!r}; give each a name of its own")
        for name in self.agents:
            if name not in known:
                raise ValueError(
                    f"agents names {name!r}, which is none of {', '.join(known)}; configure it "
                    "under endpoints or models"
                )
            if self.agents.count(name) > 1:
                raise ValueError(f"agents names {name!r} twice")
        return self

    @property
    def seeds(self) -> range:
        """Seeds of the evaluated episodes."""
        return range(self.seed, self.seed + self.episodes)

    @property
    def warmup_seeds(self) -> range:
        """Seeds of the episodes that do not count."""
        return range(self.seed + self.episodes, self.seed + self.episodes + self.warmup)

    @property
    def baselines(self) -> tuple[str, ...]:
        """Allocators asked for."""
        return tuple(name for name in self.agents if name in BASELINES)

    @property
    def asked_endpoints(self) -> tuple[EndpointConfig, ...]:
        """Endpoints that `agents` names."""
        return tuple(endpoint for endpoint in self.endpoints if endpoint.name in self.agents)

    @property
    def asked_models(self) -> tuple[LocalModelConfig, ...]:
        """Local models that `agents` names."""
        return tuple(model for model in self.models if model.name in self.agents)
