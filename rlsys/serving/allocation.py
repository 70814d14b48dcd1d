"""Share a pool of thinking tokens among open requests: what is more thinking worth for each?

A request thinks up to a cut and is answered there a few times. How well these answers agree, and
whether the most frequent one has changed since the last cut, says how likely more thinking is to
help. The gains are estimated from recorded trees, in which every cut of a thought was answered.

Shapes: Q recorded questions, K cuts, B kinds of agreement. The allocators `uniform`, `oracle` and
`fixed cap` have their names from the shared budget (docs/economics.md); there questions come one
after the other, here all requests are open at the same time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

SHARES: Final = (0.5, 0.75, 1.0)
"""Largest shares of the most frequent answer that count as one kind of agreement."""
KINDS: Final = 2 * len(SHARES)
PRIOR: Final = 8.0
"""Trees of all kinds together that are added to the trees of one kind, so that a rare kind gets
about the mean of its cut."""


class Trees(NamedTuple):
    """Recorded trees: thoughts that were answered at every cut."""

    budgets_K: Ints
    thought_QK: Ints
    """Thought tokens at the cut."""
    answered_QK: Ints
    """Sampled tokens of all answers at the cut."""
    ended_QK: Flags
    """The thought has ended by itself, so later cuts are the same one."""
    kind_QK: Ints
    """Agreement of the answers, 0 to B - 1; see `agreement`."""
    score_QK: Array
    """Score of the most frequent answer."""

    def rows(self, chosen: Ints | slice) -> Trees:
        """Return some of the questions."""
        return Trees(
            budgets_K=self.budgets_K,
            thought_QK=self.thought_QK[chosen],
            answered_QK=self.answered_QK[chosen],
            ended_QK=self.ended_QK[chosen],
            kind_QK=self.kind_QK[chosen],
            score_QK=self.score_QK[chosen],
        )


class Gains(NamedTuple):
    """What a request at cut k with agreement b gains by thinking on to cut j."""

    score_KBK: Array
    """Expected score at j minus that at k; 0 for j <= k."""
    tokens_KBK: Array
    """Expected tokens from k to j; 0 for j <= k."""

    def rates_KB(self) -> Array:
        """Return the largest expected gain per token over all later cuts, 0 at the last cut.

        The next cut alone would be too short-sighted: where an answer needs two more cuts, the
        first of them gains nothing, and the request would never get the second.
        """
        later_KBK = self.tokens_KBK > 0
        rates_KBK = np.full(later_KBK.shape, -np.inf)
        np.divide(self.score_KBK, self.tokens_KBK, out=rates_KBK, where=later_KBK)
        best_KB: Array = rates_KBK.max(axis=2)
        return np.where(np.isfinite(best_KB), best_KB, 0.0)


def most_frequent(answers: Sequence[str]) -> tuple[str, float]:
    """Return the most frequent answer and its share; of equally frequent ones the first."""
    (answer, count), *_ = Counter(answers).most_common(1)
    return answer, count / len(answers)


def agreement(share: float, changed: bool) -> int:
    """Return the kind of agreement, 0 to B - 1.

    `share` is that of the most frequent answer. `changed` True means that this answer is another
    one than at the cut before; False at the first cut.

    Example: agreement(1.0, changed=False) == 2, agreement(0.5, changed=True) == 3.
    """
    return int(np.searchsorted(SHARES, share)) + len(SHARES) * changed


def estimate_gains(trees: Trees, cost_QK: Array, *, by_kind: bool = True) -> Gains:
    """Estimate gains from recorded trees.

    Args:
        trees: trees that are not used for the comparison.
        cost_QK: tokens of a request that stops at a cut; see `spent`.
        by_kind: False gives all kinds of agreement the mean of their cut.
    """
    cuts = len(trees.budgets_K)
    gains = Gains(np.zeros((cuts, KINDS, cuts)), np.zeros((cuts, KINDS, cuts)))
    for k in range(cuts - 1):
        open_Q = ~trees.ended_QK[:, k]
        if not open_Q.any():
            continue
        later = slice(k + 1, None)
        for part, table_KBK in ((trees.score_QK, gains.score_KBK), (cost_QK, gains.tokens_KBK)):
            change_QJ = part[open_Q, later] - part[open_Q, k, None]
            for kind in range(KINDS):
                same_Q = (trees.kind_QK[open_Q, k] == kind) & by_kind
                total_J = change_QJ[same_Q].sum(axis=0) + PRIOR * change_QJ.mean(axis=0)
                table_KBK[k, kind, later] = total_J / (same_Q.sum() + PRIOR)
    return gains


def spent(trees: Trees, *, charge_answers: bool, at_every_cut: bool) -> Array:
    """Return [Q, K]: the tokens of a request that stops at a cut.

    `at_every_cut` True: the request was answered at every cut up to this one. False: only here.
    """
    if not charge_answers:
        return trees.thought_QK.astype(np.float64)
    answers_QK = trees.answered_QK.cumsum(axis=1) if at_every_cut else trees.answered_QK
    return (trees.thought_QK + answers_QK).astype(np.float64)


def next_request(
    cuts_R: Sequence[int], rates_R: Sequence[float], price_R: Sequence[float], left: float
) -> int | None:
    """Return the request that thinks on to its next cut; None if no further token should be spent.

    This is the greedy rule: the largest expected gain per token, of equal ones the shortest
    thought. With gains that shrink along every thought it is the best use of the pool, up to the
    last request that does not fit.

    Args:
        cuts_R: the cut of every open request; used between equal rates.
        rates_R: expected gain per token, 0 or less for requests that should stop.
        price_R: most tokens that the next cut can take.
        left: tokens left in the pool.
    """
    fitting = [r for r, price in enumerate(price_R) if price <= left and rates_R[r] > 0]
    return max(fitting, key=lambda r: (rates_R[r], -cuts_R[r])) if fitting else None
