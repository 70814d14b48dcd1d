"""REA-RL's numbers on the tree of original and revision: the specified group of four, by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sample_parts import advantages_of, rows_of

from rlsys.algorithms.rea import rea_samples, shaping_advantages
from rlsys.algorithms.samples import build_samples
from rlsys.config import (
    AnytimeConfig,
    BrpoConfig,
    ReaConfig,
    ReflectionEpisodes,
    ReflectionReward,
    RevisionConfig,
    RunConfig,
    ShapingConfig,
)
from rlsys.types import (
    NO_PARENT,
    Episode,
    Floats,
    Group,
    Kind,
    Problem,
    Sample,
    Segment,
    ThoughtRecord,
)

PROMPT, HEADER, CLOSING, ANSWER = 5, 1, 3, 37
"""Tokens; a row has 40 beside its thought: header and 39 of an answer, or closing and 37."""

ACCURACY = [1, 1, 0, 0, 1, 0, 1, 1]
LENGTHS = [1000, 400, 1200, 700, 800, 500, 600, 500]
REFLECTIONS = [8, 2, 6, 3, 2, 1, 3, 2]
EXPECTED = [-0.053885, 1.252397, -1.360166, -1.360166, -0.150973, -0.150973, 0.81697, 1.006797]
"""Rows o1 r1 .. o4 r4; revisions 2 and 3 are wrong and count as their originals once more."""


def segment(parent: int, cut: int, kind: Kind, tokens: int) -> Segment:
    return Segment(
        parent=parent,
        cut=cut,
        kind=kind,
        token_ids=np.zeros(tokens, np.int32),
        logprobs=np.zeros(tokens, np.float32) if kind.sampled else None,
        versions=(0, 0) if kind.sampled else None,
    )


def episode(accuracy: Sequence[int], lengths: Sequence[int], reflections: Sequence[int]) -> Episode:
    """An original and, where there is a second number, its revision."""
    thought = lengths[0] - 40
    segments = [
        segment(NO_PARENT, 0, Kind.PROMPT, PROMPT),
        segment(0, PROMPT, Kind.THOUGHT, thought),
        segment(1, thought, Kind.FORCED, HEADER),
        segment(2, HEADER, Kind.ANSWER, 39),
    ]
    if len(lengths) > 1:
        segments += [
            segment(1, lengths[1] - 40, Kind.FORCED, CLOSING),
            segment(4, CLOSING, Kind.ANSWER, ANSWER),
        ]
    return Episode(
        segments=tuple(segments),
        scores=np.array(accuracy, np.float32),
        answer_segments=np.array([3, 5][: len(lengths)], np.int32),
        splits=np.arange(len(lengths), dtype=np.int32),
        verdicts=np.array(accuracy, np.int8),
        thoughts=tuple(ThoughtRecord(n - 40, r) for r, n in zip(reflections, lengths, strict=True)),
    )


def group(*episodes: Episode) -> Group:
    return Group(index=0, task=Problem(id="p", text="", answer=""), episodes=episodes)


def pairs() -> Group:
    return group(
        *(
            episode(ACCURACY[i : i + 2], LENGTHS[i : i + 2], REFLECTIONS[i : i + 2])
            for i in range(0, 8, 2)
        )
    )


def totals(sample: Sample) -> float:
    """What the loss at ratio 1 sums over the tokens of a tree."""
    rows = sample.rows or (None,) * len(sample.segments)
    return sum(
        float((a * (1 if r is None else r)).sum())
        for a, r in zip(sample.advantages, rows, strict=True)
        if a is not None
    )


@pytest.mark.parametrize(
    "changed",
    [
        {},
        # Constants cancel in the group, so the paper's scale teaches the same.
        {"length": "refined_paper", "reflection": ReflectionReward(scale="paper")},
    ],
)
def test_the_specified_group_on_its_trees(changed: dict[str, object]) -> None:
    samples = rea_samples(pairs(), ReaConfig(**changed), revised=True)
    first, second, third, fourth = samples

    for sample, original, revision, cut in ((first, 0, 1, 360), (fourth, 6, 7, 460)):
        kept = (EXPECTED[original] + EXPECTED[revision]) / 2
        thought = advantages_of(sample, 1)
        assert_allclose(thought[:cut], kept, atol=1e-6)
        assert_allclose(thought[cut:], EXPECTED[original], atol=1e-6)
        assert_allclose(advantages_of(sample, 3), EXPECTED[original], atol=1e-6)
        assert_allclose(advantages_of(sample, 5), EXPECTED[revision], atol=1e-6)
        assert sample.advantages[2] is sample.advantages[4] is None
        assert rows_of(sample, 1).tolist() == [2] * cut + [1] * (LENGTHS[original] - 40 - cut)
        assert set(rows_of(sample, 3)) == set(rows_of(sample, 5)) == {1}
    assert advantages_of(first, 1)[0] == pytest.approx(0.599256, abs=1e-6)

    for sample, original in ((second, 2), (third, 4)):
        assert_allclose(advantages_of(sample, 1), EXPECTED[original], atol=1e-6)
        assert_allclose(advantages_of(sample, 3), EXPECTED[original], atol=1e-6)
        assert sample.advantages[5] is None  # a failed revision trains nothing
        assert set(rows_of(sample, 1)) == set(rows_of(sample, 3)) == {2}


def test_a_tree_sums_to_its_two_rows() -> None:
    """Against a slow loop over the rows that would be trained side by side."""
    samples = rea_samples(pairs(), ReaConfig(), revised=True)
    for i, sample in enumerate(samples):
        original, revision = 2 * i, 2 * i + 1
        if not ACCURACY[revision]:
            revision = original
        rows = [(original, LENGTHS[original] - HEADER)]
        rows += [(revision, LENGTHS[revision] - (HEADER if revision == original else CLOSING))]
        assert totals(sample) == pytest.approx(sum(EXPECTED[r] * n for r, n in rows), abs=2e-3)
        assert sample.num_trained == sum(n for _, n in rows)


def test_the_tail_loss_holds_the_removed_tail_against_the_thought() -> None:
    plain = rea_samples(pairs(), ReaConfig(), revised=True)
    sizes: dict[Literal["mean", "max"], float] = {
        "mean": float(np.abs(EXPECTED).mean()),
        "max": 1.360166,
    }
    for scale, size in sizes.items():
        tailed = rea_samples(pairs(), ReaConfig(tail_loss=scale), revised=True)
        for before, after, cut in zip(plain, tailed, (360, None, None, 460), strict=True):
            if cut is None:  # its revision failed
                assert_allclose(advantages_of(after, 1), advantages_of(before, 1))
                continue
            assert_allclose(advantages_of(after, 1)[:cut], advantages_of(before, 1)[:cut])
            assert_allclose(
                advantages_of(after, 1)[cut:], advantages_of(before, 1)[cut:] - size, atol=1e-6
            )
            assert_allclose(advantages_of(after, 3), advantages_of(before, 3) - size, atol=1e-6)
            assert_allclose(advantages_of(after, 5), advantages_of(before, 5) + size, atol=1e-6)


def test_a_thought_that_was_not_revised_counts_as_one_whose_revision_failed() -> None:
    whole = pairs()
    cut = [
        episode([ACCURACY[i]], [LENGTHS[i]], [REFLECTIONS[i]]) if i in (2, 4) else whole_episode
        for i, whole_episode in zip(range(0, 8, 2), whole.episodes, strict=True)
    ]
    for ours, theirs in zip(
        rea_samples(group(*cut), ReaConfig(), revised=True),
        rea_samples(whole, ReaConfig(), revised=True),
        strict=True,
    ):
        for mine, other in zip(ours.advantages, theirs.advantages, strict=False):
            if other is not None:
                assert mine is not None
                assert_allclose(mine, other)


def test_a_revision_that_failed_does_not_set_the_shortest_length() -> None:
    """Kimi's length reward looks at all answers: a wrong short one must not be among them."""
    algorithm = ReaConfig(length="length", reflection=None)
    found = [
        rea_samples(
            group(episode([1, 0], [1000, short], [0, 0]), episode([1, 1], [900, 800], [0, 0])),
            algorithm,
            revised=True,
        )
        for short in (100, 850)
    ]
    for one, other in zip(*found, strict=True):
        for advantages, same in zip(one.advantages, other.advantages, strict=True):
            assert (advantages is None) == (same is None)
            if advantages is not None and same is not None:
                assert_allclose(advantages, same)


def test_all_wrong_teaches_nothing() -> None:
    wrong = group(*(episode([0, 0], [n, n - 100], [1, 0]) for n in (300, 400, 500)))
    for sample in rea_samples(wrong, ReaConfig(tail_loss="max"), revised=True):
        assert not any(a.any() for a in sample.advantages if a is not None)
    alone = group(*(episode([0], [n], [1]) for n in (300, 400)))
    for sample in rea_samples(alone, ReaConfig(), revised=False):
        assert not any(a.any() for a in sample.advantages if a is not None)


def test_without_revision_and_rewards_it_is_grpo() -> None:
    alone = group(*(episode([a], [300], [1]) for a in (1, 0, 0)))
    config = RunConfig(
        environment=ReflectionEpisodes(), algorithm=ReaConfig(length="none", reflection=None)
    )
    for sample, expected in zip(
        build_samples(alone, config), (1.154501, -0.57725, -0.57725), strict=True
    ):
        assert [a is None for a in sample.advantages] == [True, False, True, False]
        assert_allclose(advantages_of(sample, 1), expected, atol=1e-5)
        assert_allclose(advantages_of(sample, 3), expected, atol=1e-5)
        assert sample.num_trained == 260 + 39


def test_a_revising_run_makes_trees() -> None:
    config = RunConfig(
        environment=ReflectionEpisodes(revision=RevisionConfig(model={"path": "reflection"})),
        algorithm=ReaConfig(),
    )
    first = build_samples(pairs(), config)[0]
    assert advantages_of(first, 5)[0] == pytest.approx(EXPECTED[1], abs=1e-6)


def anytime_episode(scores: Sequence[int], length: int, reflections: int) -> Episode:
    """Two budgets, one answer each, with a record of the thought before each answer."""
    segments = [
        segment(NO_PARENT, 0, Kind.PROMPT, PROMPT),
        segment(0, PROMPT, Kind.THOUGHT, length),
        segment(1, 10, Kind.FORCED, CLOSING),
        segment(2, CLOSING, Kind.ANSWER, 4),
        segment(1, length, Kind.FORCED, HEADER),
        segment(4, HEADER, Kind.ANSWER, 4),
    ]
    return Episode(
        segments=tuple(segments),
        scores=np.array(scores, np.float32),
        answer_segments=np.array([3, 5], np.int32),
        splits=np.array([0, 1], np.int32),
        verdicts=np.array(scores, np.int8),
        thoughts=(ThoughtRecord(10, 0), ThoughtRecord(length, reflections)),
    )


def test_shaping_adds_what_a_thought_earns_beyond_its_group_to_all_its_tokens() -> None:
    episodes = group(
        anytime_episode([0, 1], 20, 2),
        anytime_episode([0, 1], 40, 1),
        anytime_episode([1, 0], 30, 0),
    )
    shaping = ShapingConfig(
        length_weight=0.5, reflection=ReflectionReward(tokens_per_reflection=20, weight=0.2)
    )
    # refined length .5, -.5, -.5 and reflections 1, .5, 0, weighed and centred
    extra = np.array([0.25 + 0.2, -0.25 + 0.1, -0.25]) - 0.05 / 3
    assert_allclose(shaping_advantages(episodes, shaping), extra, atol=1e-6)

    def thoughts(algorithm: BrpoConfig) -> list[Floats]:
        config = RunConfig(
            environment=AnytimeConfig(budgets=(10, 40), answers=1), algorithm=algorithm
        )
        return [advantages_of(sample, 1) for sample in build_samples(episodes, config)]

    plain, shaped = thoughts(BrpoConfig()), thoughts(BrpoConfig(shaping=shaping))
    for before, after, more in zip(plain, shaped, extra, strict=True):
        assert_allclose(after, before + more, atol=1e-6)


def test_shaping_of_a_group_without_a_right_answer_is_nothing() -> None:
    episodes = group(anytime_episode([1, 0], 20, 2), anytime_episode([0, 0], 40, 1))
    assert_allclose(shaping_advantages(episodes, ShapingConfig()), 0)
