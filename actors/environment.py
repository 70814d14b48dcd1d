"""The environment actor: rolls out groups and turns them into samples, many at once.

Samples stay in the object store for the learner's ranks; the driver gets a report of numbers.
"""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any, NamedTuple

from ray import cloudpickle

from actors.pools import GenerationPool
from rlsys.algorithms.samples import build_samples
from rlsys.algorithms.tree_samples import has_signal
from rlsys.config import RunConfig
from rlsys.environments.base import ReflectionModel, Role, RolloutContext
from rlsys.environments.registry import environment_class
from rlsys.tokenization.prompts import PromptRenderer
from rlsys.tokenization.tokenizer import load_tokenizer
from rlsys.types import Environment, Generator, Grader, GroupReport, Sample, Task


class Services(NamedTuple):
    """The other actors that a rollout needs."""

    generator: Generator
    grader: Grader
    reflection_model: ReflectionModel | None = None

    def packed(self) -> bytes:
        """Return them as bytes, for an actor that Ray may start again.

        Ray would keep an argument with handles of actors in its object store, and could not start
        the actor again without it. Bytes are part of the actor's description.
        """
        packed: bytes = cloudpickle.dumps(self)
        return packed


class EnvironmentActor:
    """A plain class; rlsys.launch makes a Ray actor of it."""

    def __init__(self, config: RunConfig, services: bytes, max_length: int) -> None:
        """Roll out the episodes of `config`, in sequences of at most `max_length` tokens.

        `services` is a packed Services.
        """
        self._config = config
        self._generator, self._grader, self._reflection_model = pickle.loads(services)
        self._max_length = max_length
        self._tokenizer = load_tokenizer(config.model.path)
        # Made when first used: an evaluation alone needs no training environment, whose reflection
        # model or training server may not run.
        self._environments: dict[Role, Environment[Any]] = {}

    async def train_group(self, index: int, task: Task) -> tuple[tuple[Sample, ...], GroupReport]:
        """Roll out one training group; the two results are two objects (num_returns=2)."""
        environment = self._environment("training")
        group = await environment.rollout(index, task)
        samples = build_samples(group, self._config)
        report = replace(environment.report(group, samples), signal=has_signal(samples))
        return samples, report

    async def evaluate_group(self, index: int, task: Task) -> GroupReport:
        """Roll out one group of the evaluation; nothing of it is trained on."""
        environment = self._environment("evaluation")
        return environment.report(await environment.rollout(index, task), ())

    def rerouted(self) -> int:
        """Return how many requests had to be sent again, because an engine died."""
        return self._generator.rerouted if isinstance(self._generator, GenerationPool) else 0

    def _environment(self, role: Role) -> Environment[Any]:
        if role not in self._environments:
            tokenizer = self._tokenizer
            context = RolloutContext(
                config=self._config,
                role=role,
                tokenizer=tokenizer,
                decode=lambda ids: str(tokenizer.decode(ids, skip_special_tokens=True)),
                renderer=PromptRenderer(tokenizer, self._config.data.prompt),
                generator=self._generator,
                grader=self._grader,
                max_length=self._max_length,
                reflection_model=self._reflection_model,
            )
            self._environments[role] = environment_class(self._config).create(context)
        return self._environments[role]
