"""How many tokens a method needs: against the starting model, under a budget, against chance.

Shapes: S problem sets, K responses, B places where a thought may be cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


class TokenRatios(NamedTuple):
    """Tokens of a method in percent of the starting model's."""

    per_set_S: Array
    mean_of_ratios: float
    """Every problem set weighs alike; what the paper's tables call TR."""
    ratio_of_means: float
    """Every token weighs alike, so long sets dominate."""


def token_ratios(method: ArrayLike, base: ArrayLike) -> TokenRatios:
    """Compare mean tokens per response [S] of a method with those of the starting model [S]."""
    method_S = np.asarray(method, dtype=np.float64)
    base_S = np.asarray(base, dtype=np.float64)
    per_set_S = 100.0 * method_S / base_S
    return TokenRatios(
        per_set_S, float(per_set_S.mean()), float(100.0 * method_S.mean() / base_S.mean())
    )


def cut_at_budget(lengths: ArrayLike, budget: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return tokens [K] and whether the answer survives [K] if responses are cut afterwards.

    That is not what a policy does that was told the budget, or was trained under it: measure that
    by generating under the budget.

    Args:
        lengths: [K] tokens of each response, EOS included.
        budget: tokens that remain, at most.
    """
    lengths_K = np.asarray(lengths, dtype=np.int64)
    return np.minimum(lengths_K, budget), lengths_K <= budget


def fixed_ratio_cuts(boundaries: Sequence[Sequence[int]], share: float) -> list[int]:
    """Return where to cut each thought if nobody looks at what it says: the baseline of detection.

    Each thought is cut at the place nearest to the share that is still to be kept of the tokens
    still to come, so that over all thoughts close to `share` of the tokens are kept.

    Args:
        boundaries: per thought, the token counts [B] at which it may be cut, increasing; the last
            one is its length.
        share: share of all tokens to keep, in [0, 1].
    """
    total = sum(places[-1] for places in boundaries)
    to_keep = share * total
    cuts = []
    for places in boundaries:
        target = places[-1] * to_keep / total
        cut = min(places, key=lambda place: abs(place - target))
        cuts.append(cut)
        to_keep -= cut
        total -= places[-1]
    return cuts
