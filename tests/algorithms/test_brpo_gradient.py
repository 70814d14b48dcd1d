"""The expected gradient of BRPO, by enumerating every group of a toy policy.

The policy draws one bit per slot; the score at budget s is 1 if any of the first s + 1 bits is 1. A
baseline that contains the own thought shrinks the expected gradient by a factor that is known:
1 - (M - s) / (M * G) in mode brpo, 1 - 1 / G in mode v2only, 1 in v1only and none.
"""

from __future__ import annotations

from itertools import product

import numpy as np
from numpy.testing import assert_allclose
from numpy.typing import NDArray

from rlsys.algorithms.brpo import prior, thought_advantages

PROBABILITIES_M = (0.3, 0.45, 0.2, 0.6)


def true_gradient(
    weights_M: NDArray[np.float64], probabilities_M: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Gradient of E[sum of prior * score] by the logit of each bit, in closed form."""
    num_budgets = len(weights_M)
    gradient_M = np.zeros(num_budgets)
    for s, probability in enumerate(probabilities_M):
        for k in range(s, num_budgets):
            others_zero = np.prod([1 - probabilities_M[i] for i in range(k + 1) if i != s])
            gradient_M[s] += weights_M[k] * probability * (1 - probability) * others_zero
    return gradient_M


def expected_gradient(
    weights_M: NDArray[np.float64],
    probabilities_M: NDArray[np.float64],
    num_thoughts: int,
    mode: str,
) -> NDArray[np.float64]:
    """E[mean over thoughts of (d log policy / d logit) * advantage], over every possible group."""
    num_budgets = len(weights_M)
    total_M = np.zeros(num_budgets)
    for flat in product((0, 1), repeat=num_thoughts * num_budgets):
        bits_GM = np.reshape(flat, (num_thoughts, num_budgets))
        scores_GM = np.maximum.accumulate(bits_GM, axis=1)
        advantages_GM = thought_advantages(scores_GM, weights_M, mode=mode)
        chance = np.prod(np.where(bits_GM == 1, probabilities_M, 1 - probabilities_M))
        total_M += chance * ((bits_GM - probabilities_M) * advantages_GM).mean(axis=0)
    return total_M


def test_expected_gradient_is_the_true_one_times_a_known_factor() -> None:
    cases: list[tuple[int, int, str, list[float]]] = [
        (2, 4, "brpo", [0.5, 0.625, 0.75, 0.875]),
        (2, 4, "v2only", [0.5, 0.5, 0.5, 0.5]),
        (2, 4, "v1only", [1, 1, 1, 1]),
        (2, 4, "none", [1, 1, 1, 1]),
        (2, 4, "notrain", [0, 0, 0, 0]),
        (2, 2, "brpo", [0.5, 0.75]),
        (3, 3, "brpo", [0.666667, 0.777778, 0.888889]),
        (3, 3, "v2only", [0.666667, 0.666667, 0.666667]),
    ]
    for name in ["uniform", "linear", "base"]:
        for num_thoughts, num_budgets, mode, ratio_M in cases:
            weights_M = prior(name, range(1, num_budgets + 1))
            probabilities_M = np.array(PROBABILITIES_M[:num_budgets])
            estimate_M = expected_gradient(weights_M, probabilities_M, num_thoughts, mode)
            assert_allclose(
                estimate_M / true_gradient(weights_M, probabilities_M),
                ratio_M,
                atol=1e-6,
                err_msg=str((num_thoughts, num_budgets, mode)),
            )
