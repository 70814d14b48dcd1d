"""What the scores and thoughts of a batch of groups look like, before any training."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlsys.algorithms.samples import THOUGHT
from rlsys.types import Group


def group_metrics(groups: Sequence[Group], budgets: Sequence[int]) -> dict[str, float]:
    """Return means over all episodes of `groups`, of which at least one must not be empty.

    score/B is the mean score at budget B and score/mean the mean over budgets (anytime accuracy);
    solve/none and solve/all are the shares of groups in which no answer, or every answer, is right:
    they have no gradient. thought/length is in tokens; thought/ended is the share of thoughts that
    ended before the largest budget.
    """
    episodes = [episode for group in groups for episode in group.episodes]
    scores_EMA = np.stack([episode.scores for episode in episodes]).reshape(
        len(episodes), len(budgets), -1
    )
    score_M = scores_EMA.mean(axis=(0, 2), dtype=np.float64)
    group_means = [
        np.mean([episode.scores.mean() for episode in group.episodes])
        for group in groups
        if group.episodes
    ]
    length_E = np.array([len(episode.segments[THOUGHT].token_ids) for episode in episodes])
    return {
        **{f"score/{budget}": float(score) for budget, score in zip(budgets, score_M, strict=True)},
        "score/mean": float(score_M.mean()),
        "solve/none": float(np.mean(np.equal(group_means, 0.0))),
        "solve/all": float(np.mean(np.equal(group_means, 1.0))),
        "thought/length": float(length_E.mean()),
        "thought/length_p50": float(np.percentile(length_E, 50)),
        "thought/length_p95": float(np.percentile(length_E, 95)),
        "thought/ended": float(np.mean(length_E < budgets[-1])),
    }
