"""Samples thoughts and answers of many sets, and appends a row for each thought.

Every thought is a group of one anytime episode (rlsys.environments.anytime), so an answer is
sampled and graded exactly as in training. The seed of a thought depends on the evaluation's seed,
the set, the problem and the number of the sample only. So it does not matter in what order thoughts
are sampled, or after how many restarts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from rlsys.algorithms.tree_samples import THOUGHT
from rlsys.config.evaluation_sets import SetsConfig
from rlsys.environments.anytime import AnytimeEnvironment
from rlsys.environments.seeds import derive_seed
from rlsys.errors import ConfigError
from rlsys.evaluation.records import (
    BudgetAnswer,
    SampleResult,
    digest_of,
    result_id,
)
from rlsys.grading.answers import extract_answer
from rlsys.reflection.labelling.journal import Journal
from rlsys.types import Episode, Kind, Problem, Verdict

MESSAGES = 10
"""About how many messages about the progress an evaluation prints."""


class Unit(NamedTuple):
    """One thought to sample."""

    set: str
    problem: Problem
    sample: int

    @property
    def id(self) -> str:
        """The id of its row."""
        return result_id(self.set, self.problem.id, self.sample)


def all_units(config: SetsConfig, problems: Mapping[str, Sequence[Problem]]) -> list[Unit]:
    """Return every thought of the evaluation: by set, problem and sample."""
    return [
        Unit(name, problem, sample)
        for name, of_set in problems.items()
        for problem in of_set
        for sample in range(config.data.sets[name].samples)
    ]


def check_unchanged(
    done: Sequence[SampleResult], units: Sequence[Unit], weights: str, run_dir: Path
) -> None:
    """Raise ConfigError if the weights, or a problem, are not those of a row that exists."""
    now = {(unit.set, unit.problem.id): digest_of(unit.problem) for unit in units}
    for row in done:
        if row.weights != weights:
            raise ConfigError(
                f"the results in {run_dir} are of other weights than model.path holds now; give "
                "another run_dir"
            )
        if now.get((row.set, row.problem), row.digest) != row.digest:
            raise ConfigError(
                f"problem {row.problem!r} of data.sets.{row.set} is not the one that {run_dir} has "
                "results for; restore the file of the set, or give another run_dir"
            )


async def sample_units(
    environment: AnytimeEnvironment,
    units: Collection[Unit],
    journal: Journal,
    *,
    weights: str,
    concurrency: int,
    tell: Callable[[str], None],
) -> None:
    """Sample all units that the journal lacks, at most `concurrency` at once; append their rows."""
    missing = [unit for unit in units if unit.id not in journal]
    if len(missing) < len(units):
        tell(f"{len(units) - len(missing):,} of {len(units):,} thoughts were sampled before")
    free, finished = asyncio.Semaphore(concurrency), 0
    stride = max(len(missing) // MESSAGES, 1)

    async def sample(unit: Unit) -> None:
        nonlocal finished
        async with free:
            row = await sample_unit(environment, unit, weights)
        journal.append(msgspec.to_builtins(row))
        finished += 1
        if finished % stride == 0 or finished == len(missing):
            tell(f"{finished:,} of {len(missing):,} thoughts sampled and answered")

    async with asyncio.TaskGroup() as tasks:
        for unit in missing:
            tasks.create_task(sample(unit))


async def sample_unit(environment: AnytimeEnvironment, unit: Unit, weights: str) -> SampleResult:
    """Sample one thought of the model with these `weights`, with its answers under all budgets."""
    seed = derive_seed(environment.seed, unit.set, unit.problem.id, unit.sample)
    group = await environment.rollout(seed, unit.problem)
    (episode,) = group.episodes
    thought = episode.segments[THOUGHT].token_ids
    return SampleResult(
        id=unit.id,
        set=unit.set,
        problem=unit.problem.id,
        digest=digest_of(unit.problem),
        weights=weights,
        sample=unit.sample,
        seed=seed,
        thought_tokens=len(thought),
        closed=environment.sampler.think.closes(thought),
        answers=tuple(
            _answer(environment, episode, slot, len(thought))
            for slot in range(len(environment.budgets))
        ),
    )


def _answer(
    environment: AnytimeEnvironment, episode: Episode, slot: int, thought_tokens: int
) -> BudgetAnswer:
    """Return the answer under budget number `slot`; with one answer per cut, slots are budgets."""
    budget = environment.budgets[slot]
    answer = episode.segments[episode.answer_segments[slot]]
    before = episode.segments[answer.parent]
    # The header may open the box, so the forced tokens belong to the text of the answer.
    forced = before.token_ids.tolist() if before.kind is Kind.FORCED else []
    text = environment.sampler.decode([*forced, *answer.token_ids.tolist()])
    closed = environment.sampler.think.closes(episode.segments[THOUGHT].token_ids)
    return BudgetAnswer(
        budget=budget,
        score=float(episode.scores[slot]),
        invalid=bool(episode.verdicts[slot] == Verdict.INVALID),
        cut=min(budget, thought_tokens),
        forced=thought_tokens > budget or not closed,
        tokens=len(answer.token_ids),
        answer=extract_answer(text),
    )
