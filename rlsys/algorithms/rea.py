"""Samples of REA-RL: originals and revisions form one group, and a pair shares one tree.

Source: arXiv 2505.19862 and its released code; docs/reflection.md lists where the two differ. The
rows of a group are o1 r1 o2 r2 ...: every original, followed by its revision. The tree of an
episode holds the answer of the original and, if the thought was revised, the answer of the
revision. The revised answer follows forced text, which follows the thought at its cut. A thought
without a revision is treated like a thought with a failed revision: both rows are its original.

Shapes: G episodes of one problem, R rows (2G with revisions, G without), L tokens of a thought.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlsys.algorithms import reflection
from rlsys.algorithms.reflection.advantages import RIGHT
from rlsys.algorithms.tree_samples import THOUGHT, whole_episode
from rlsys.config import ReaConfig, ShapingConfig
from rlsys.types import Episode, Floats, Group, Sample, Segment

Array = NDArray[np.float64]


class Rows(NamedTuple):
    """Inputs of the rewards of the R rows of one question."""

    accuracy_R: Array
    tokens_R: Array
    """Tokens after the prompt, forced ones included."""
    thought_tokens_R: Array
    reflections_R: Array


class Advantages(NamedTuple):
    """Advantages of the G pairs, by part of the tree."""

    kept_G: Array
    """Of the tokens that both rows share; each of these tokens counts as two."""
    tail_G: Array
    """Of the tokens of the original after the cut, and of its answer."""
    ending_G: Array
    """Of the revised answer."""
    replaced_G: NDArray[np.bool_]
    """True if the revision was replaced by its original; the whole path then counts twice."""


def shaping_rewards(rows: Rows, shaping: ShapingConfig) -> Array:
    """Return the weighted length and reflection rewards of the rows of one question, float64[R]."""
    rewards_R = np.zeros(len(rows.accuracy_R))
    if shaping.length != "none":
        rewards_R += shaping.length_weight * reflection.length_reward(
            rows.tokens_R, rows.accuracy_R, shaping.length
        )
    if (settings := shaping.reflection) is not None:
        rewards_R += settings.weight * np.array(
            [
                reflection.reflection_reward(
                    int(count), int(tokens), settings.tokens_per_reflection, scale=settings.scale
                )
                for count, tokens in zip(rows.reflections_R, rows.thought_tokens_R, strict=True)
            ]
        )
    return rewards_R


def shaping_advantages(group: Group, shaping: ShapingConfig) -> Array:
    """Return what the length and reflection rewards add to the advantage of every thought.

    For episodes that are scored at several budgets; their returns already contain the accuracy. The
    result, float64[G], is the reward of the whole thought minus the mean of the group. As in BRPO
    it is not divided by a deviation. A thought is right if more than half of the answers at its end
    are right. If no thought of the group is right, all values are 0.
    """
    last = [_row(episode, len(episode.scores) - 1) for episode in group.episodes]
    # Several budgets share the last cut of a short thought. All their answers follow the same
    # tokens, so all of them measure whether the whole thought is right.
    ends = [e.scores[e.splits == e.splits[-1]].mean() for e in group.episodes]
    # The thought alone: forced text and answers differ between budgets, and the length reward must
    # not depend on them.
    lengths = [len(episode.segments[THOUGHT].token_ids) for episode in group.episodes]
    rows = Rows(*np.array(last, dtype=np.float64).T)._replace(
        accuracy_R=np.array(ends, dtype=np.float64), tokens_R=np.array(lengths, dtype=np.float64)
    )
    # Without a right thought a short wrong thought must not be preferred to a long wrong one.
    if not np.any(rows.accuracy_R > RIGHT):
        return np.zeros(len(last))
    rewards_G = shaping_rewards(rows, shaping)
    centred_G: Array = rewards_G - rewards_G.mean()
    return centred_G


def rea_samples(group: Group, algorithm: ReaConfig, *, revised: bool) -> tuple[Sample, ...]:
    """Return one sample per episode.

    Args:
        group: episodes with one or two answers each.
        algorithm: settings of the rewards and of the tail loss.
        revised: False in a run without revisions; a group then has only its G originals.
    """
    if not revised:
        rows = _rows(group.episodes, answers=1)
        rewards_G = rows.accuracy_R + shaping_rewards(rows, algorithm)
        advantages_G = reflection.revision_advantages(rewards_G, rows.accuracy_R)
        return tuple(map(whole_episode, group.episodes, advantages_G))
    found = pair_advantages(_rows(group.episodes, answers=2), algorithm)
    return tuple(_tree_sample(e, found, g) for g, e in enumerate(group.episodes))


def pair_advantages(rows: Rows, algorithm: ReaConfig) -> Advantages:
    """Return the advantages of rows o1 r1 o2 r2 ..., with the optional tail loss.

    Failed revisions are replaced first, then come rewards and advantages. The tail loss differs
    from the released code in two ways. Its scale is taken from the absolute advantages of this
    group, not of the whole batch. And it is added to the advantages, so it is divided by the number
    of all trained tokens, not by the number of tail tokens.
    """
    sources_R = reflection.repair_sources(rows.accuracy_R)
    # Replace before the rewards, not after: a wrong, short revision must not set the shortest
    # length that the length reward of the other rows is measured against.
    trained = Rows(*(column_R[sources_R] for column_R in rows))
    rewards_R = trained.accuracy_R + shaping_rewards(trained, algorithm)
    advantages_R = reflection.revision_advantages(rewards_R, trained.accuracy_R)
    kept_G, tail_G, ending_G = reflection.tree_advantages(advantages_R, sources_R)
    if algorithm.tail_loss != "none":
        # With the accuracies before the replacement: the tail loss needs the revision itself to be
        # right, and a replaced revision has the accuracy of its original.
        added_R = reflection.tail_advantages(
            advantages_R, rows.accuracy_R, rows.thought_tokens_R, scale=algorithm.tail_loss
        )
        tail_G, ending_G = tail_G + added_R[0::2], ending_G + added_R[1::2]
    # kept_G is the sum over both rows. The learner multiplies a shared token by its row count, 2,
    # so the advantage stored in the tree is the mean.
    return Advantages(kept_G / 2, tail_G, ending_G, sources_R[0::2] == sources_R[1::2])


def _rows(episodes: Sequence[Episode], *, answers: int) -> Rows:
    """The rows of a group, `answers` per episode. A missing revision becomes a wrong row."""
    values = []
    for episode in episodes:
        rows = [_row(episode, answer) for answer in range(len(episode.scores))]
        # Accuracy 0 makes `repair_sources` replace the row by its original, as a failed revision.
        missing = (0.0, *rows[0][1:])
        values += rows + [missing] * (answers - len(rows))
    return Rows(*np.array(values, dtype=np.float64).T)


def _row(episode: Episode, answer: int) -> tuple[float, float, float, float]:
    thought = episode.thoughts[answer]
    return (
        float(episode.scores[answer]),
        response_tokens(episode.segments, int(episode.answer_segments[answer])),
        float(thought.tokens),
        float(thought.reflections),
    )


def response_tokens(segments: Sequence[Segment], leaf: int) -> int:
    """Tokens from the end of the prompt to the end of segment `leaf`."""
    tokens, kept, segment = 0, len(segments[leaf].token_ids), leaf
    # Segment 0 is the prompt. A child follows only the first `cut` tokens of its parent.
    while segment > 0:
        tokens += kept
        kept, segment = segments[segment].cut, segments[segment].parent
    return tokens


def _tree_sample(episode: Episode, found: Advantages, pair: int) -> Sample:
    """Both rows of a pair on one tree. A token that both rows contain has the row count 2."""
    segments = episode.segments
    length = len(segments[THOUGHT].token_ids)
    original = int(episode.answer_segments[0])
    advantages: list[Floats | None] = [None] * len(segments)
    rows: list[NDArray[np.int32] | None] = [None] * len(segments)

    def put(segment: int, values_T: Array, copies_T: NDArray[np.int32]) -> None:
        advantages[segment], rows[segment] = values_T.astype(np.float32), copies_T

    def everywhere(segment: int, value: float, copies: int) -> None:
        tokens = len(segments[segment].token_ids)
        put(segment, np.full(tokens, value), np.full(tokens, copies, np.int32))

    if found.replaced_G[pair]:
        # Both rows are the original, so all its tokens count twice. A revised answer may be in the
        # tree; it keeps advantage None and is not trained, because it failed.
        everywhere(THOUGHT, found.kept_G[pair], 2)
        everywhere(original, found.kept_G[pair], 2)
    else:
        revision = int(episode.answer_segments[1])
        # The parent of the revised answer is the forced text, and its parent is the thought.
        kept_L = np.arange(length) < segments[segments[revision].parent].cut
        tail = found.tail_G[pair]
        put(
            THOUGHT,
            np.where(kept_L, found.kept_G[pair], tail),
            np.where(kept_L, 2, 1).astype(np.int32),
        )
        everywhere(original, tail, 1)
        everywhere(revision, found.ending_G[pair], 1)
    return Sample(segments=segments, advantages=tuple(advantages), rows=tuple(rows))
