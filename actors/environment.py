"""The environment actor: grows groups and turns them into samples, many at once.

Samples stay in the object store for the learner's ranks; the driver gets a report of numbers.
"""

from __future__ import annotations

from rlsys.algorithms.samples import build_samples
from rlsys.config import RunConfig
from rlsys.data.prompts import PromptRenderer, ThinkTokens, load_tokenizer
from rlsys.environments.anytime import AnytimeEnvironment
from rlsys.environments.report import GroupReport, readable_episode, report_group
from rlsys.types import Generator, Grader, Problem, Sample


class EnvironmentActor:
    """A plain class; rlsys.orchestration.launch makes a Ray actor of it."""

    def __init__(self, config: RunConfig, generator: Generator, grader: Grader) -> None:
        self._config = config
        tokenizer = load_tokenizer(config.model.path)
        self._decode = lambda ids: str(tokenizer.decode(ids, skip_special_tokens=True))
        self._renderer = PromptRenderer(tokenizer, config.data.prompt)
        env = config.environment
        self._training = AnytimeEnvironment(
            budgets=env.budgets,
            answers=env.answers,
            answer_tokens=env.answer_tokens,
            group_size=config.batch.group_size,
            temperature=config.generation.temperature,
            seed=config.seed,
            think=ThinkTokens.resolve(tokenizer, env),
            decode=self._decode,
            generator=generator,
            grader=grader,
        )
        self._evaluation = AnytimeEnvironment(
            budgets=config.evaluation_budgets,
            answers=config.evaluation.answers,
            answer_tokens=env.answer_tokens,
            group_size=config.evaluation.samples,
            temperature=config.evaluation.temperature,
            seed=config.seed + 1,
            think=self._training.think,
            decode=self._decode,
            generator=generator,
            grader=grader,
        )

    async def train_group(
        self, index: int, problem: Problem
    ) -> tuple[tuple[Sample, ...], GroupReport]:
        """Grow one training group; the two results are two objects (num_returns=2)."""
        group = await self._training.run_group(index, problem, self._renderer.render(problem))
        samples = build_samples(group, self._config)
        text = readable_episode(group, self._training, self._decode)
        return samples, report_group(group, self._training, samples, text)

    async def evaluate_group(self, index: int, problem: Problem) -> GroupReport:
        """Grow one group at the evaluation budgets; nothing of it is trained on."""
        group = await self._evaluation.run_group(index, problem, self._renderer.render(problem))
        text = readable_episode(group, self._evaluation, self._decode)
        return report_group(group, self._evaluation, (), text)
