"""Seconds per group of anytime episodes, with answers that wait for all thoughts and without.

    python benchmarks/group_time.py --out group_time.jsonl

One engine with the tiny reasoner on the CPU, as an actor of a local Ray. Rounds alternate between
both ways, on the same groups: `all thoughts` samples the thoughts of a group in one request, and
then all answers; `own thought` is AnytimeEnvironment.rollout. Both must return the same tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np

from actors.generation import GenerationActor
from actors.pools import GenerationPool
from actors.vllm_settings import EngineSpec, engine_environment
from lab_trees import environment_of
from rlsys.config import RunConfig
from rlsys.data.problems import load_problems
from rlsys.tokenization.model_folder import resolve_model_path
from rlsys.types import Group, Problem

Rollout = Callable[[int, Problem], Awaitable[Group]]
MAX_LENGTH = 512


def main() -> None:
    """Start the engine and measure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--without-ray", action="store_true", help="the actor in this process")
    parser.add_argument("--in-flight", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--out", type=Path, default=Path("group_time.jsonl"))
    asked = parser.parse_args()
    config = RunConfig.model_validate(
        {
            "data": {"train": {"source": "arithmetic", "size": 256}},
            "environment": {
                "type": "anytime",
                "budgets": [8, 16, 32, 64],
                "answers": 4,
                "answer_tokens": 6,
                "closing": "",
                "answer_header": "\n\n**Final Answer**\n\\boxed{",
            },
            "batch": {"group_size": 8},
        }
    )
    variables = engine_environment(on_gpu=False, threads=1)
    generator: GenerationActor | GenerationPool
    if asked.without_ray:
        os.environ.update(variables)
        generator = GenerationActor(_spec(config))
    else:
        import ray

        ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
        actor = ray.remote(GenerationActor)
        options = {"max_concurrency": 1000, "runtime_env": {"env_vars": variables}}
        generator = GenerationPool([actor.options(**options).remote(_spec(config))])
    asyncio.run(_measure(asked, config, generator))
    # vLLM's processes keep a finished interpreter waiting for minutes.
    os._exit(0)


async def _measure(
    asked: argparse.Namespace, config: RunConfig, generator: GenerationActor | GenerationPool
) -> None:
    if isinstance(generator, GenerationActor):
        await generator.start(serve=True)
    else:
        await generator.start()
    environment = environment_of(config, generator, max_length=MAX_LENGTH)
    problems = load_problems(config.data.train)

    async def all_thoughts(index: int, problem: Problem) -> Group:
        prompt = environment.renderer.render(problem)
        thoughts = await environment.sample_thoughts(index, prompt)
        branches = [b for g, t in enumerate(thoughts) for b in environment.branches(g, t)]
        answers = await environment.sample_answers(index, problem, prompt, thoughts, branches)
        return environment.group(index, problem, prompt, thoughts, branches, answers)

    ways: dict[str, Rollout] = {"all thoughts": all_thoughts, "own thought": environment.rollout}
    for in_flight in asked.in_flight:
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        for number in range(asked.rounds + 1):
            # Another order in every second round, because the second one finds cached prompts.
            order = list(ways) if number % 2 else list(ways)[::-1]
            found: dict[str, list[Group]] = {}
            for way in order:
                started = time.monotonic()
                found[way] = await asyncio.gather(
                    *(
                        ways[way](i, problems[i % len(problems)])
                        for i in range(number * in_flight, (number + 1) * in_flight)
                    )
                )
                if number:  # the first round warms up
                    seconds[way].append((time.monotonic() - started) / in_flight)
            _check_equal(*found.values())
        for way, times in seconds.items():
            row = {
                "answers_wait_for": way,
                "ray": not asked.without_ray,
                "in_flight": in_flight,
                "rounds": asked.rounds,
                "median_s": round(statistics.median(times), 4),
                "fastest_s": round(min(times), 4),
            }
            print(json.dumps(row), flush=True)
            with asked.out.open("a", encoding="utf-8") as file:
                file.write(f"{json.dumps(row)}\n")


def _check_equal(first: list[Group], second: list[Group]) -> None:
    """Raise AssertionError unless both ways sampled the same tokens."""
    for one, other in zip(first, second, strict=True):
        for a, b in zip(one.episodes, other.episodes, strict=True):
            assert len(a.segments) == len(b.segments)
            for left, right in zip(a.segments, b.segments, strict=True):
                assert np.array_equal(left.token_ids, right.token_ids)


def _spec(config: RunConfig) -> EngineSpec:
    return EngineSpec(
        index=0,
        model=str(resolve_model_path(config.model.path)),
        dtype="float32",
        max_length=MAX_LENGTH,
        max_sequences=256,
        tensor_parallel=1,
        on_gpu=False,
        gpu_memory_utilization=0.4,
        kv_cache_bytes=64 << 20,
        enforce_eager=True,
        seed=0,
    )


if __name__ == "__main__":
    main()
