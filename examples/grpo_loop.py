"""GRPO as one explicit loop, with rlsys as a library: sample, grade, compare, train, sync.

    python examples/grpo_loop.py                 # the tiny reasoner on this machine, 10 steps
    python examples/grpo_loop.py steps=30 batch.group_size=16

`rlsys train` does the same, with rollouts that overlap training, checkpoints, evaluation and
reports. Start from this file if your method does not fit that loop.

Source: DeepSeekMath, arXiv 2402.03300, Section 4.1; without the division by the group's standard
deviation, as in Dr. GRPO, arXiv 2503.20783.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from actors.pools import GenerationPool
from learner.group import StoredSamples
from rlsys.algorithms.tree_samples import whole_episode
from rlsys.config import RunConfig
from rlsys.config.loading import load_config
from rlsys.data.problems import TaskStream
from rlsys.environments.anytime import AnytimeEnvironment
from rlsys.environments.base import Inputs, RolloutContext
from rlsys.grading.compare import grade
from rlsys.launch.inputs import check_inputs
from rlsys.launch.processes import training_processes
from rlsys.launch.session import ray_session, run
from rlsys.launch.weights import connect
from rlsys.tokenization.prompts import PromptRenderer
from rlsys.tokenization.tokenizer import load_tokenizer
from rlsys.types import GradingRequest, Group, Problem, Sample, Verdict

CONFIG = Path(__file__).parents[1] / "configs" / "grpo.yaml"
DEFAULTS = ["steps=10", "rollout.max_staleness=0", "batch.problems=8"]


async def train(config: RunConfig, inputs: Inputs) -> None:
    """The whole method."""
    problems = [task for task in inputs.train if isinstance(task, Problem)]
    tasks = TaskStream(problems, seed=config.seed, shuffle=True)
    async with training_processes(config, inputs) as (learner, engines, _, folder, *_):
        environment = make_environment(config, inputs, engines)
        weights = await connect(config, learner, engines, folder, inputs.canary)
        await weights.publish(0)
        for step in range(config.steps):
            # 1. Sample a group of thoughts and answers for every problem, and grade the answers.
            first = step * config.batch.problems
            groups = await asyncio.gather(
                *(
                    environment.rollout(index, tasks.task(index))
                    for index in range(first, first + config.batch.problems)
                )
            )
            # 2. Compare every episode with the other episodes of its problem.
            batch = [StoredSamples.put(advantages(group)) for group in groups]
            # 3. One optimizer step on all sampled tokens: packed trees, clipped surrogate.
            metrics = await learner.step(batch)
            # 4. The next groups are sampled by the new weights.
            await weights.publish(step + 1)
            scores = [episode.scores[0] for group in groups for episode in group.episodes]
            print(f"step {step + 1}: score {np.mean(scores):.3f}, loss {metrics['loss']:.4f}")


def advantages(group: Group) -> list[Sample]:
    """Score minus the group's mean score, on every token that the episode sampled."""
    scores_G = np.array([episode.scores[0] for episode in group.episodes])
    advantages_G = scores_G - scores_G.mean()
    return list(map(whole_episode, group.episodes, advantages_G))


def make_environment(
    config: RunConfig, inputs: Inputs, engines: GenerationPool
) -> AnytimeEnvironment:
    """The environment in this process; `rlsys train` has it in actors."""
    tokenizer = load_tokenizer(config.model.path)
    context = RolloutContext(
        config=config,
        role="training",
        tokenizer=tokenizer,
        decode=lambda ids: str(tokenizer.decode(ids, skip_special_tokens=True)),
        renderer=PromptRenderer(tokenizer, config.data.prompt),
        generator=engines,
        grader=Grader(),
        max_length=inputs.longest_sequence,
    )
    return AnytimeEnvironment.create(context)


class Grader:
    """Grades in processes of this one; `rlsys train` has a pool of grading actors."""

    async def grade(self, requests: Sequence[GradingRequest]) -> list[Verdict]:
        """Return one verdict per request, in order."""
        return await asyncio.gather(*(asyncio.to_thread(grade, request) for request in requests))


def main() -> None:
    """Check the input, start Ray and train."""
    config = load_config(CONFIG, [*DEFAULTS, *sys.argv[1:]])
    inputs = check_inputs(config)
    with ray_session(config):
        run(train(config, inputs))


if __name__ == "__main__":
    main()
