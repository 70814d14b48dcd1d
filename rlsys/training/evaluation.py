"""Evaluation on held-out problems: the anytime curve, or the returns of dialogues."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from rlsys.environments.report import LOST
from rlsys.errors import EpisodeLost
from rlsys.training.metrics import gathered, mean_numbers
from rlsys.training.protocols import GroupRunner, Reporter
from rlsys.types import GroupReport, Task


async def evaluate_policy(
    runner: GroupRunner, problems: Sequence[Task], reporter: Reporter, step: int
) -> list[GroupReport]:
    """Roll out a group for every problem, report the means, and return the groups' reports."""
    reports = await asyncio.gather(
        *(runner.evaluate_group(index, problem) for index, problem in enumerate(problems))
    )
    numbers = mean_numbers(reports) | {"problems": float(len(problems))}
    reporter.evaluation(step, numbers, [report.example for report in reports])
    return reports


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
