"""Seconds of attention under the tree mask, by its two kernels (learner.attention)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rlsys.planning.time import TrainingLoad

TRUNK_RATE: Final = 0.43
"""Part of a card's peak that the dense kernel of a row's trunk reaches, forward and backward
together (benchmarks/results/learner_kernels_H200.jsonl)."""
BRANCH_RATE: Final = 0.2
"""The same of FlexAttention: 0.24 on branches of long thoughts, 0.16 on rows of short trees."""
ATTENTION_PRODUCTS: Final = (2, 5)
"""Matrix products of the forward and backward kernels; the FLOPs of a forward pass
count 2, and the backward pass computes the scores again (arXiv 2205.14135, Algorithm 4)."""


def attention_seconds(load: TrainingLoad, forwards: float, peak: float) -> float:
    """Return the seconds of attention in a step of `forwards` passes forward and one backward.

    `peak` are the operations per second of the card.
    """
    tree, rows = load.tree, load.rows
    # learner.attention.dense_trunk: only the first tree of a row has a trunk.
    dense = rows.trees_per_row == 1 and 2 * tree.trunk >= rows.row_tokens
    trunk = tree.trunk_pairs if dense else 0
    forward, backward = ATTENTION_PRODUCTS
    products = forward * forwards + backward

    def seconds(pairs: int, rate: float) -> float:
        per_product = load.shape.attention_flops(pairs) * load.trees / 2
        return per_product * products / (rate * peak)

    return seconds(trunk, TRUNK_RATE) + seconds(tree.visible_pairs - trunk, BRANCH_RATE)
