"""Evaluation on held-out problems: the anytime curve, or the returns of dialogues."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from statistics import fmean

import numpy as np

from rlsys.environments.report import LOST
from rlsys.errors import EpisodeLost
from rlsys.estimates import bootstrap_mean, pass_at_k
from rlsys.training.metrics import gathered, mean_numbers
from rlsys.training.protocols import GroupRunner, Reporter
from rlsys.types import GroupReport, Task

SCORE = "score/"
"""Prefix of the accuracy at one budget."""


async def evaluate_policy(
    runner: GroupRunner, problems: Sequence[Task], reporter: Reporter, step: int
) -> list[GroupReport]:
    """Roll out a group for every problem, report the means, and return the groups' reports."""
    reports = await asyncio.gather(
        *(runner.evaluate_group(index, problem) for index, problem in enumerate(problems))
    )
    numbers = mean_numbers(reports) | {"problems": float(len(problems))}
    numbers |= curve_estimates(reports)
    reporter.evaluation(step, numbers, [report.example for report in reports])
    return reports


def curve_estimates(reports: Sequence[GroupReport]) -> dict[str, float]:
    """Return 95 % intervals over problems for every budget of a curve, and pass@k if possible.

    `low/BUDGET` and `high/BUDGET` are the ends of a bootstrap interval over problems, `low/mean`
    and `high/mean` those of the mean over budgets. `pass_at_K/BUDGET` needs several samples per
    problem with one answer per cut: several answers after one thought are not independent samples.
    Empty if the reports have no curve.
    """
    curve = {
        name.removeprefix(SCORE): [r.numbers[name] for r in reports if len(r.numbers.get(name, ()))]
        for name in dict.fromkeys(n for r in reports for n in r.numbers if n.startswith(SCORE))
    }
    numbers: dict[str, float] = {}
    means_BP = np.array([[scores_G.mean() for scores_G in groups] for groups in curve.values()])
    if len(means_BP):
        rows = dict(zip(curve, means_BP, strict=True)) | {"mean": means_BP.mean(axis=0)}
        for budget, means_P in rows.items():
            _, numbers[f"low/{budget}"], numbers[f"high/{budget}"] = bootstrap_mean(means_P)
    if any(r.answers != len(r.scores_G) * len(curve) for r in reports):
        return numbers  # several answers per cut
    for budget, groups in curve.items():
        samples = min(len(scores_G) for scores_G in groups)
        for k in (2**power for power in range(1, samples.bit_length())):
            passed = [pass_at_k(len(s), int(s.sum()), k) for s in groups]
            numbers[f"pass_at_{k}/{budget}"] = fmean(passed)
    return numbers


def loss_warning(reports: Sequence[GroupReport]) -> str | None:
    """Return a sentence if some episodes of an evaluation were lost; None if no episode was.

    Raises EpisodeLost if all episodes were lost, because then nothing was measured.
    """
    losses = gathered(reports).get(LOST, ())
    lost = int(sum(losses))
    if not lost:
        return None
    if lost == len(losses):
        raise EpisodeLost(
            f"all {lost} episodes of the evaluation were lost, so nothing was measured; check that "
            "the server of the environment runs, and set RLSYS_ACTOR_LOGS=1 to see the errors"
        )
    return (
        f"{lost} of {len(losses)} episodes of the evaluation were lost, so its means are over the "
        "others; set RLSYS_ACTOR_LOGS=1 to see the errors"
    )
