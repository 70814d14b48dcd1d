"""Groups per second of everything around the engines: main loop, buffer, routing, environment.

    python benchmarks/driver_speed.py --out driver_speed.jsonl

What runs is the code of a training run in ONE Python process, without Ray: the main loop, the
buffer, RayRunner, metrics, ledger and files of the driver; in the job `all` also EnvironmentActor,
GenerationPool with its routing, prompts, grading by rules, trees and advantages. What is a stub:
engines answer at once with tokens that were made before, the learner and the weight sync do
nothing, and a call of an actor is a call of a coroutine. So the cost of Ray is not in the figures.

    driver   environment actors are stubs too: each group is a report that was made before
    all      environment actors are real and run in the same process as the driver

With Ray every environment actor has a process of its own, so the cost of a group outside the driver
(`all` minus `driver`) is shared by `rollout.environment_actors` processes. Each measurement prints
one JSON object and appends it to --out.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import io
import json
import pstats
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from rich.console import Console

from actors.engine_state import EngineCounts
from actors.environment import EnvironmentActor, Services
from actors.pools import GenerationPool, GradingPool
from rlsys.config import RunConfig
from rlsys.data.problems import TaskStream, load_problems
from rlsys.launch.runner import RayRunner
from rlsys.reporting.reporter import RunReporter
from rlsys.training.checkpoints import CheckpointStore
from rlsys.training.loop import Parts, StopSignal, train
from rlsys.training.protocols import FinishedGroup
from rlsys.types import Completion, GenerationRequest, GroupReport, Sample, Task

ENGINES = (1, 4, 16, 64, 256)
PROBLEMS = 256
"""Groups per training step."""
ENVIRONMENTS = 8
METHODS: Mapping[str, dict[str, Any]] = {
    "brpo": {
        "environment": {
            "type": "anytime",
            "budgets": [16, 32, 48, 64],
            "answers": 2,
            "answer_tokens": 8,
        },
        "algorithm": {"method": "brpo"},
    },
    "grpo": {
        "environment": {"type": "anytime", "budgets": [64], "answers": 1, "answer_tokens": 8},
        "algorithm": {"method": "grpo"},
    },
}


def main() -> None:
    """Measure every job, method and number of engines that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", nargs="+", choices=["driver", "all"], default=["driver", "all"])
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--engines", nargs="+", type=int, default=list(ENGINES))
    parser.add_argument("--steps", type=int, help="of a measurement: 32 or, for `all`, 4")
    parser.add_argument("--repeats", type=int, default=3, help="the fastest of them counts")
    parser.add_argument("--label", default="", help="goes into every row, for instance `before`")
    parser.add_argument("--profile", action="store_true", help="print where the time goes")
    parser.add_argument("--out", type=Path, default=Path("driver_speed.jsonl"))
    asked = parser.parse_args()
    for method in asked.methods:
        for job in asked.jobs:
            for engines in asked.engines:
                profile = cProfile.Profile() if asked.profile else None
                # The driver is fast: in few steps one run of the garbage collector would decide.
                steps = asked.steps or {"driver": 32, "all": 4}[job]
                rows = [measure(job, method, engines, steps, profile) for _ in range(asked.repeats)]
                # The others were slowed down by what else ran on the machine.
                line = json.dumps({"label": asked.label} | min(rows, key=_cost))
                print(line, flush=True)
                with asked.out.open("a", encoding="utf-8") as file:
                    file.write(f"{line}\n")
                if profile is not None:
                    _show(profile)


def measure(
    job: str, method: str, engines: int, steps: int, profile: cProfile.Profile | None = None
) -> dict[str, object]:
    """Run `steps` training steps after one that warms up; return the row of the measurement."""
    config = RunConfig.model_validate(
        {
            "steps": steps + 1,
            "data": {"train": {"source": "arithmetic", "size": 1024}},
            "batch": {"problems": PROBLEMS, "group_size": 8},
            "checkpoint": {"every": 0},
            "rollout": {"max_staleness": 1, "environment_actors": ENVIRONMENTS},
            "reporting": {"sinks": []},
            **METHODS[method],
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(_measure(job, config, engines, Path(folder), profile))
    groups = steps * PROBLEMS
    # Time of the process and not of the clock: other processes of the machine take cores.
    return {
        "job": job,
        "method": method,
        "engines": engines,
        "groups": groups,
        "us_per_group": round(1e6 * found.cpu_s / groups, 1),
        "groups_per_s": round(groups / found.cpu_s),
        "wall_s": round(found.wall_s, 3),
    } | ({"busiest_over_mean": round(found.imbalance, 2)} if job == "all" else {})


@dataclass(slots=True)
class Measured:
    """What one run of the loop took."""

    cpu_s: float
    wall_s: float
    imbalance: float
    """Tokens of the engine that sampled most over the mean of all engines."""


async def _measure(
    job: str, config: RunConfig, engines: int, folder: Path, profile: cProfile.Profile | None
) -> Measured:
    learner = StubLearner(profile)
    stubs = [StubEngine(index, learner) for index in range(engines)]
    handles = [InProcess(stub) for stub in stubs]
    pool = GenerationPool(handles)
    environments: list[object] = [
        _environment(config, pool.part(index, ENVIRONMENTS)) for index in range(ENVIRONMENTS)
    ]
    if job == "driver":
        # One report per problem of a real group, so that metrics see realistic numbers.
        some = load_problems(config.data.train)[:64]
        real = _environment(config, pool)
        made = await asyncio.gather(*(real.train_group(i, task) for i, task in enumerate(some)))
        environments = [StubEnvironment([report for _, report in made], learner)] * ENVIRONMENTS
    runner = RayRunner([InProcess(actor) for actor in environments], pool)
    with (
        RunReporter(
            folder, config.steps, Console(file=io.StringIO()), reporting=config.reporting
        ) as reporter,
        # A future of asyncio stands for a reference of Ray.
        mock.patch("rlsys.launch.runner.ray.cancel", lambda future: future.cancel()),
    ):
        reporter.start("", "")
        parts = Parts(
            runner=runner,
            learner=learner,
            weights=learner,
            checkpoints=NoCheckpoints(folder, 1, print),
            reporter=reporter,
            stop=StopSignal(),
        )
        tasks: list[Task] = list(load_problems(config.data.train))
        problems = TaskStream(tasks, seed=0, shuffle=True)
        gc.freeze()  # as rlsys.launch does
        await train(config, parts, problems, [], start=0, first_group=0, finished={})
    if profile is not None:
        profile.disable()
    tokens = np.array([stub.tokens for stub in stubs], float)
    return Measured(
        cpu_s=learner.ended[0] - learner.began[0],
        wall_s=learner.ended[1] - learner.began[1],
        imbalance=float(tokens.max() / max(tokens.mean(), 1)),
    )


def _environment(config: RunConfig, pool: GenerationPool) -> EnvironmentActor:
    grading = GradingPool([], max_characters=config.grading.max_characters)
    with mock.patch.object(Services, "packed", lambda self: b""):
        packed = Services(pool, grading)
    with mock.patch("actors.environment.pickle.loads", lambda services: services):
        return EnvironmentActor(config, packed, 512)  # type: ignore[arg-type]


class InProcess:
    """Stands for a handle of Ray: `handle.method.remote(...)` starts a task of this event loop."""

    def __init__(self, actor: object) -> None:
        self._actor = actor

    def __getattr__(self, name: str) -> _Method:
        method = _Method(getattr(self._actor, name))
        setattr(self, name, method)
        return method


class _Method:
    def __init__(self, function: Callable[..., Any], results: int = 1) -> None:
        self._function = function
        self._results = results

    def options(self, *, num_returns: int) -> _Method:
        return _Method(self._function, num_returns)

    def remote(self, *arguments: object) -> Any:
        task = asyncio.ensure_future(self._function(*arguments))
        return task if self._results == 1 else (None, _second(task))


def _second(task: asyncio.Task[Any]) -> asyncio.Task[Any]:
    async def report() -> Any:
        return (await task)[1]

    return asyncio.ensure_future(report())


class StubEngine:
    """Answers at once. A request of many tokens is a thought, one of few tokens an answer."""

    def __init__(self, index: int, learner: StubLearner) -> None:
        self._index = index
        self._learner = learner
        self.tokens = 0
        generator = np.random.default_rng(0)
        self._tokens = generator.integers(8, 16, 4096).astype(np.int32)
        self._logprobs = -np.ones(4096, np.float32)

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[list[Completion]]:
        """Return completions whose lengths follow from the seed."""
        return [[self._sample(request, i) for i in range(request.n)] for request in requests]

    async def counts(self) -> EngineCounts:
        """Return numbers as an engine does."""
        return EngineCounts(prompt_tokens=1)

    def _sample(self, request: GenerationRequest, number: int) -> Completion:
        # A quarter of the thoughts reaches the limit, the others stop somewhere below it.
        draw = ((request.seed or 0) + number * 7919) % 4096
        length = min(1 + draw % (request.max_tokens * 4 // 3), request.max_tokens)
        self.tokens += length
        start = draw % (4096 - length)
        return Completion(
            token_ids=self._tokens[start : start + length],
            logprobs=self._logprobs[:length],
            stopped=length < request.max_tokens,
            versions=(self._learner.version,) * 2,
            engine=self._index,
        )


class StubEnvironment:
    """Returns reports that were made before."""

    def __init__(self, reports: Sequence[GroupReport], learner: StubLearner) -> None:
        self._reports = reports
        self._learner = learner

    async def train_group(self, index: int, task: Task) -> tuple[tuple[Sample, ...], GroupReport]:
        """Return a report for this place in the admission order."""
        versions = (self._learner.version,) * 2
        report = self._reports[index % len(self._reports)]
        return (), replace(report, index=index, versions=versions)


class NoCheckpoints(CheckpointStore):
    """Writes nothing at the end of the run: the samples of waiting groups do not exist."""

    async def save(self, *arguments: object) -> None:
        """Do nothing."""


class StubLearner:
    """Learner and weight sync that do nothing; takes the time from the end of step 1 on."""

    def __init__(self, profile: cProfile.Profile | None) -> None:
        self.version = 0
        self.began = self.ended = (0.0, 0.0)
        self._profile = profile

    async def step(self, groups: Sequence[FinishedGroup]) -> dict[str, float]:
        """Return the metrics that warnings look at."""
        return {"loss": 0.0, "skipped_in_row": 0.0}

    async def publish(self, version: int) -> float:
        """Note the time at the end of the first step and of the last one."""
        self.version = version
        now = time.process_time(), time.monotonic()
        if version == 1:
            self.began = now
            if self._profile is not None:
                self._profile.enable()
        self.ended = now
        return 0.0

    @asynccontextmanager
    async def learner_busy(self) -> AsyncIterator[None]:
        """Yield at once."""
        yield

    async def save(self, folder: Path) -> None:
        """Write an empty checkpoint."""
        folder.mkdir(parents=True)

    async def export(self, folder: Path) -> None:
        """Do nothing."""


def _cost(row: Mapping[str, Any]) -> float:
    return float(row["us_per_group"])


def _show(profile: cProfile.Profile) -> None:
    text = io.StringIO()
    pstats.Stats(profile, stream=text).sort_stats("tottime").print_stats(35)
    print(text.getvalue())


if __name__ == "__main__":
    main()
