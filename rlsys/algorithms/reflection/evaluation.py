"""Measure how many tokens a method needs: relative to the starting model, or under a budget.

`fixed_ratio_cuts` is the baseline of detection. Shapes: S problem sets, K responses, B positions
where a thought may be cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


class TokenRatios(NamedTuple):
    """Tokens of a method in percent of the tokens of the starting model."""

    per_set_S: Array
    mean_of_ratios: float
    """Every problem set has the same weight; the tables of the paper call this TR."""
    ratio_of_means: float
    """Every token has the same weight, so problem sets with long responses dominate."""


def token_ratios(method: ArrayLike, base: ArrayLike) -> TokenRatios:
    """Compare mean tokens per response [S] of a method with those of the starting model [S]."""
    method_S = np.asarray(method, dtype=np.float64)
    base_S = np.asarray(base, dtype=np.float64)
    per_set_S = 100.0 * method_S / base_S
    return TokenRatios(
        per_set_S, float(per_set_S.mean()), float(100.0 * method_S.mean() / base_S.mean())
    )


def cut_at_budget(lengths: ArrayLike, budget: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Cut finished responses; return their tokens [K] and whether the answer remains [K].

    This does not measure a policy that knows the budget or was trained under it. For that, generate
    under the budget.

    Args:
        lengths: [K] tokens of each response, EOS included.
        budget: maximum number of tokens after the cut.
    """
    lengths_K = np.asarray(lengths, dtype=np.int64)
    return np.minimum(lengths_K, budget), lengths_K <= budget


def fixed_ratio_cuts(boundaries: Sequence[Sequence[int]], share: float) -> list[int]:
    """Return a cut for each thought without regard to its content: the baseline of detection.

    Together the cuts keep close to `share` of all tokens.

    Args:
        boundaries: per thought, the token counts [B] at which it may be cut, increasing; the last
            one is its length.
        share: share of all tokens to keep, in [0, 1].
    """
    total = sum(cuts_B[-1] for cuts_B in boundaries)
    to_keep = share * total
    cuts = []
    for cuts_B in boundaries:
        # Cuts lie only at boundaries, so each one misses its target a little. The target is
        # computed from the tokens that are left, which makes the next thoughts correct the error.
        target = cuts_B[-1] * to_keep / total
        cut = min(cuts_B, key=lambda tokens: abs(tokens - target))
        cuts.append(cut)
        to_keep -= cut
        total -= cuts_B[-1]
    return cuts
