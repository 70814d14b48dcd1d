"""The anytime curve: accuracy at every budget on held-out problems."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np

from rlsys.config import RunConfig
from rlsys.orchestration.metrics import curve_of
from rlsys.orchestration.protocols import GroupRunner, Reporter
from rlsys.types import Problem


async def evaluate(
    runner: GroupRunner,
    problems: Sequence[Problem],
    config: RunConfig,
    reporter: Reporter,
    step: int,
) -> dict[int, float]:
    """Report and return accuracy per budget; its mean is the anytime accuracy."""
    reports = await asyncio.gather(
        *(runner.evaluate_group(index, problem) for index, problem in enumerate(problems))
    )
    curve = curve_of(reports, config.evaluation_budgets)
    lengths = np.concatenate([r.thought_lengths_G for r in reports])
    closed = np.concatenate([r.closed_G for r in reports])
    extra = {
        "thought/length": float(lengths.mean()),
        "thought/closed": float(closed.mean()),
        "problems": float(len(problems)),
    }
    reporter.evaluation(step, curve, extra)
    return curve
