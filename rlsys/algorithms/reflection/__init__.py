"""REA-RL: find where a thought starts to overthink, revise it there, and keep it reflecting.

Source: Deng et al., "REA-RL: Reflection-Aware Online Reinforcement Learning for Efficient
Reasoning", arXiv 2505.19862. Where the released code and the paper differ, the code is the default
and the paper is an option; docs/reflection.md lists every difference.

In the order of a training step:

    chunking    split a thought into numbered chunks, on the token ids that were sampled
    detection   read the labels of the reflection model, choose the chunk after which to cut
    rewards     reward short answers and frequent reflection
    advantages  originals and revisions in one group of 2G
    evaluation  token ratios, budgets and fixed-ratio baselines

All functions are pure, on numbers, strings and numpy arrays.
"""

from __future__ import annotations

from rlsys.algorithms.reflection.advantages import (
    TreeAdvantages,
    repair_sources,
    revision_advantages,
    tail_advantages,
    tree_advantages,
    truncation_accuracy,
)
from rlsys.algorithms.reflection.chunking import (
    ChunkedThought,
    Piece,
    chunk_thought,
    chunks,
    split_pieces,
    windows,
)
from rlsys.algorithms.reflection.detection import (
    LabelReading,
    Strength,
    cut_index,
    label_probability,
    last_cut,
    read_labels,
)
from rlsys.algorithms.reflection.evaluation import (
    TokenRatios,
    cut_at_budget,
    fixed_ratio_cuts,
    token_ratios,
)
from rlsys.algorithms.reflection.rewards import (
    count_reflections,
    length_reward,
    reflection_reward,
    reflection_threshold,
)

__all__ = [
    "ChunkedThought",
    "LabelReading",
    "Piece",
    "Strength",
    "TokenRatios",
    "TreeAdvantages",
    "chunk_thought",
    "chunks",
    "count_reflections",
    "cut_at_budget",
    "cut_index",
    "fixed_ratio_cuts",
    "label_probability",
    "last_cut",
    "length_reward",
    "read_labels",
    "reflection_reward",
    "reflection_threshold",
    "repair_sources",
    "revision_advantages",
    "split_pieces",
    "tail_advantages",
    "token_ratios",
    "tree_advantages",
    "truncation_accuracy",
    "windows",
]
