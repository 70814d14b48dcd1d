"""The environment actor: rolls out groups and turns them into samples, many at once.

Samples stay in the object store for the learner's ranks; the driver gets a report of numbers.
"""

from __future__ import annotations

import gc
import pickle
import time
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from ray import cloudpickle

from actors.pools import GenerationPool
from rlsys.algorithms.samples import build_samples
from rlsys.algorithms.tree_samples import has_signal
from rlsys.config import RunConfig
from rlsys.environments.base import ReflectionModel, Role, RolloutContext
from rlsys.environments.registry import environment_class
from rlsys.spans import span
from rlsys.tokenization.prompts import PromptRenderer
from rlsys.tokenization.tokenizer import load_tokenizer
from rlsys.types import (
    Environment,
    Generator,
    Grader,
    GradingRequest,
    GroupReport,
    Sample,
    Task,
    Verdict,
)


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


_GRADING_S: ContextVar[list[float]] = ContextVar("grading")
"""Seconds of every grading call of the training group that this task rolls out."""


class _TimedGrader:
    """A grader that notes how long its calls take."""

    def __init__(self, grader: Grader) -> None:
        self._grader = grader

    async def grade(self, requests: Sequence[GradingRequest]) -> list[Verdict]:
        """Grade as the grader does."""
        began = time.monotonic()
        with span(f"grading of {len(requests)} answers"):
            verdicts = await self._grader.grade(requests)
        _GRADING_S.get([]).append(time.monotonic() - began)
        return verdicts


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
        # The objects of the libraries live as long as the actor. Walking over all of them again and
        # again, the garbage collector took a third of the time of a group.
        gc.freeze()
        # Made when first used: an evaluation alone needs no training environment, whose reflection
        # model or training server may not run.
        self._environments: dict[Role, Environment[Any]] = {}

    async def train_group(self, index: int, task: Task) -> tuple[tuple[Sample, ...], GroupReport]:
        """Roll out one training group; the two results are two objects (num_returns=2)."""
        environment = self._environment("training")
        grading_s: list[float] = []
        # Tasks that the rollout starts see the same list. Ray runs every call in a context of its
        # own, so groups that are rolled out at the same time do not share it.
        _GRADING_S.set(grading_s)
        began = time.monotonic()
        with span(f"group {index}"):
            group = await environment.rollout(index, task)
        rolled_out = time.monotonic()
        with span(f"samples of group {index}"):
            samples = build_samples(group, self._config)
            report = environment.report(group, samples)
        seconds = {
            "rollout": rolled_out - began,
            "grading": sum(grading_s),
            "samples": time.monotonic() - rolled_out,
        }
        times = {f"time/{name}": np.array([s], np.float32) for name, s in seconds.items()}
        numbers = {**report.numbers, **times}
        return samples, replace(report, numbers=numbers, signal=has_signal(samples))

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
                grader=_TimedGrader(self._grader),
                max_length=self._max_length,
                reflection_model=self._reflection_model,
            )
            self._environments[role] = environment_class(self._config).create(context)
        return self._environments[role]
