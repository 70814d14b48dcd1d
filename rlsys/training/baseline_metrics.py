"""Metrics of BRPO's baselines: how well they predict the return of a thought."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rlsys.algorithms import brpo
from rlsys.config import AnytimeConfig, BrpoConfig, RunConfig
from rlsys.types import GroupReport


def baseline_metrics(reports: Sequence[GroupReport], config: RunConfig) -> dict[str, float]:
    """Return correlation and remaining variance of V1, V2 and V per budget slot of a batch.

    The names are `baseline/correlation_V/BUDGET` and `baseline/variance_V/BUDGET`. A slot without a
    value has no metric (see `brpo.baseline_quality`). Empty for other methods than BRPO.
    """
    algorithm, environment = config.algorithm, config.environment
    if not (isinstance(algorithm, BrpoConfig) and isinstance(environment, AnytimeConfig)):
        return {}
    budgets = environment.budgets
    weights_M = brpo.prior(algorithm.prior, budgets)
    by_budget = algorithm.coefficients == "budget"
    share_M = brpo.budget_coefficients(budgets) if by_budget else None
    names = [f"score/{budget}" for budget in budgets]
    groups, present = [], []
    for numbers in (report.numbers for report in reports):
        if not all(name in numbers for name in names):  # all episodes of the group were lost
            continue
        scores_GM = np.stack([numbers[name] for name in names], axis=1)
        found = brpo.baselines(scores_GM, weights_M, decay=algorithm.decay, coefficients=share_M)
        groups.append(found)
        # A thought has a token in slot s if it is longer than the budget before.
        present.append(numbers["thought/length"][:, None] > np.array([0, *budgets[:-1]]))
    if not groups:
        return {}
    metrics = {
        f"baseline/{what}_{name}/{budget}": float(value)
        for name, quality in brpo.baseline_quality(groups, present).items()
        for what, values_M in quality._asdict().items()
        for budget, value in zip(budgets, values_M, strict=True)
    }
    return {name: value for name, value in metrics.items() if math.isfinite(value)}
