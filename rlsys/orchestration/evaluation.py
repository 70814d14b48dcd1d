"""Evaluation on held-out problems: the anytime curve, or what episodes of several turns earn."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from rlsys.environments.report import GroupReport
from rlsys.orchestration.metrics import mean_numbers
from rlsys.orchestration.protocols import GroupRunner, Reporter
from rlsys.types import Problem


async def evaluate(
    runner: GroupRunner, problems: Sequence[Problem], reporter: Reporter, step: int
) -> list[GroupReport]:
    """Grow a group for every problem, report the means and return the groups' reports."""
    reports = await asyncio.gather(
        *(runner.evaluate_group(index, problem) for index, problem in enumerate(problems))
    )
    numbers = mean_numbers(reports) | {"problems": float(len(problems))}
    reporter.evaluation(step, numbers, [report.example for report in reports])
    return reports
