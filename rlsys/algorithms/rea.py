"""REA-RL's samples: originals and revisions in one group, as advantages on the tree they share.

Source: arXiv 2505.19862 and its released code; docs/reflection.md tells where the two differ. The
rows of a group are o1 r1 o2 r2 ...: every original and its revision. In the tree of an episode the
answers are the original's and, if there was one, the revision's, which hangs off the thought at its
cut by forced text. A thought that was not revised, for whatever reason, counts like one whose
revision failed: its original stands for both rows.

Shapes: G episodes of one problem, R rows (2G with revisions, else G), L tokens of a thought.
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
    """What the rewards of R rows of one question depend on."""

    accuracy_R: Array
    tokens_R: Array
    """Tokens after the prompt, forced ones included."""
    thought_tokens_R: Array
    reflections_R: Array


class Advantages(NamedTuple):
    """What the two rows of every pair put on the tokens of its tree."""

    kept_G: Array
    """On the tokens that both rows share; each of them stands for two."""
    tail_G: Array
    """On the removed tokens of the original, and on its answer."""
    ending_G: Array
    """On the revised answer."""
    replaced_G: NDArray[np.bool_]
    """Pairs whose revision is trained as its original once more: nothing was removed."""


def shaping_rewards(rows: Rows, shaping: ShapingConfig) -> Array:
    """Return the weighted rewards beside accuracy of every row of one question, float64[R]."""
    rewards_R = np.zeros(len(rows.accuracy_R))
    if shaping.length != "none":
        rewards_R += shaping.length_weight * reflection.length_reward(
            rows.tokens_R, rows.accuracy_R, shaping.length
        )
    if (paid := shaping.reflection) is not None:
        rewards_R += paid.weight * np.array(
            [
                reflection.reflection_reward(
                    int(count), int(tokens), paid.tokens_per_reflection, scale=paid.scale
                )
                for count, tokens in zip(rows.reflections_R, rows.thought_tokens_R, strict=True)
            ]
        )
    return rewards_R


def shaping_advantages(group: Group, shaping: ShapingConfig) -> Array:
    """Return what the rewards beside accuracy add to the advantage of every thought, float64[G].

    For episodes that are scored at several budgets, whose returns already stand for accuracy: the
    reward of the whole thought minus the group's mean, 0 for all if no thought answers right at its
    end. Nothing is divided by a deviation, as in BRPO. A thought is right if most of its last
    answers are, and as long as its own tokens.
    """
    last = [_row(episode, len(episode.scores) - 1) for episode in group.episodes]
    ends = [e.scores[e.splits == e.splits[-1]].mean() for e in group.episodes]
    lengths = [len(episode.segments[THOUGHT].token_ids) for episode in group.episodes]
    rows = Rows(*np.array(last, dtype=np.float64).T)._replace(
        accuracy_R=np.array(ends, dtype=np.float64), tokens_R=np.array(lengths, dtype=np.float64)
    )
    if not np.any(rows.accuracy_R > RIGHT):
        return np.zeros(len(last))
    rewards_G = shaping_rewards(rows, shaping)
    centred_G: Array = rewards_G - rewards_G.mean()
    return centred_G


def rea_samples(group: Group, algorithm: ReaConfig, *, revised: bool) -> tuple[Sample, ...]:
    """Return one sample per episode.

    Args:
        group: episodes of one or two answers.
        algorithm: the rewards.
        revised: False for a run without revisions, whose group is its G originals.
    """
    if not revised:
        rows = _rows(group.episodes, answers=1)
        rewards_G = rows.accuracy_R + shaping_rewards(rows, algorithm)
        advantages_G = reflection.revision_advantages(rewards_G, rows.accuracy_R)
        return tuple(map(whole_episode, group.episodes, advantages_G))
    found = pair_advantages(_rows(group.episodes, answers=2), algorithm)
    return tuple(_tree_sample(e, found, g) for g, e in enumerate(group.episodes))


def pair_advantages(rows: Rows, algorithm: ReaConfig) -> Advantages:
    """Repair, rewards and advantages of rows o1 r1 o2 r2 ..., and the optional tail loss.

    The tail loss is scaled by the absolute advantages of this group, where the released code takes
    those of the whole batch, and it is added to the advantages: its tokens are then divided by the
    number of all trained tokens, not by their own.
    """
    sources_R = reflection.repair_sources(rows.accuracy_R)
    trained = Rows(*(column_R[sources_R] for column_R in rows))
    rewards_R = trained.accuracy_R + shaping_rewards(trained, algorithm)
    advantages_R = reflection.revision_advantages(rewards_R, trained.accuracy_R)
    kept_G, tail_G, ending_G = reflection.tree_advantages(advantages_R, sources_R)
    if algorithm.tail_loss != "none":
        more_R = reflection.tail_advantages(
            advantages_R, rows.accuracy_R, rows.thought_tokens_R, scale=algorithm.tail_loss
        )
        tail_G, ending_G = tail_G + more_R[0::2], ending_G + more_R[1::2]
    # The tree's numbers are those of both rows together where both have the token.
    return Advantages(kept_G / 2, tail_G, ending_G, sources_R[0::2] == sources_R[1::2])


def _rows(episodes: Sequence[Episode], *, answers: int) -> Rows:
    """The rows of a group; a revision that is missing is one that failed: its original, wrong."""
    values = []
    for episode in episodes:
        rows = [_row(episode, answer) for answer in range(len(episode.scores))]
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
    tokens, kept, place = 0, len(segments[leaf].token_ids), leaf
    while place > 0:
        tokens += kept
        kept, place = segments[place].cut, segments[place].parent
    return tokens


def _tree_sample(episode: Episode, found: Advantages, pair: int) -> Sample:
    """Both rows of a pair on one tree, where a token that both have stands for two rows."""
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
        everywhere(THOUGHT, found.kept_G[pair], 2)
        everywhere(original, found.kept_G[pair], 2)
    else:
        revision = int(episode.answer_segments[1])
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
