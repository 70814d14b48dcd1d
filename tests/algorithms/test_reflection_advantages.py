from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray

from rlsys.algorithms import grpo
from rlsys.algorithms.reflection import (
    length_reward,
    reflection_reward,
    repair_sources,
    revision_advantages,
    tail_advantages,
    tree_advantages,
    truncation_accuracy,
)

# One question, four samples and their revisions: o1 r1 o2 r2 o3 r3 o4 r4.
ACCURACY = np.array([1, 1, 0, 0, 1, 0, 1, 1], dtype=float)
LENGTHS = np.array([1000, 400, 1200, 700, 800, 500, 600, 500])
REFLECTIONS = [8, 2, 6, 3, 2, 1, 3, 2]
THOUGHT_TOKENS = LENGTHS - 40
ADVANTAGES = [-0.053885, 1.252397, -1.360166, -1.360166, -0.150973, -0.150973, 0.81697, 1.006797]

PAIRS = st.lists(
    st.tuples(st.floats(-2, 2), st.booleans(), st.floats(-2, 2), st.booleans()),
    min_size=1,
    max_size=8,
)


def rows_of(
    pairs: list[tuple[float, bool, float, bool]],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    rewards = np.array([[original, revision] for original, _, revision, _ in pairs]).ravel()
    accuracy = np.array([[a, b] for _, a, _, b in pairs], dtype=float).ravel()
    return rewards, accuracy


def test_a_group_from_answers_to_advantages() -> None:
    length = length_reward(LENGTHS, ACCURACY, "refined")
    assert_allclose(length, [-0.5, 0.5, -0.5, -0.5, -0.166667, -0.5, 0.166667, 0.333333], atol=1e-6)
    reflection = np.array(list(map(reflection_reward, REFLECTIONS, THOUGHT_TOKENS)))
    assert_allclose(reflection, [1, 1, 1, 1, 0.592342, 0.489326, 1, 0.978652], atol=1e-6)

    sources = repair_sources(ACCURACY)
    assert_array_equal(sources, [0, 1, 2, 2, 4, 4, 6, 7])
    rewards = (ACCURACY + length + reflection)[sources]
    assert_allclose(
        rewards, [1.5, 2.5, 0.5, 0.5, 1.425675, 1.425675, 2.166667, 2.311986], atol=1e-6
    )
    assert rewards.mean() == pytest.approx(1.54125, abs=1e-5)
    assert rewards.std(ddof=1) == pytest.approx(0.765432, abs=1e-6)
    assert_allclose(revision_advantages(rewards, ACCURACY[sources]), ADVANTAGES, atol=1e-6)
    assert truncation_accuracy(ACCURACY) == 0.75


def test_the_same_group_in_the_paper_s_scale() -> None:
    length = length_reward(LENGTHS, ACCURACY, "refined_paper")
    reflection = [
        reflection_reward(count, tokens, scale="paper")
        for count, tokens in zip(REFLECTIONS, THOUGHT_TOKENS, strict=True)
    ]
    sources = repair_sources(ACCURACY)
    rewards = (ACCURACY + length + reflection)[sources]
    assert_allclose(revision_advantages(rewards, ACCURACY[sources]), ADVANTAGES, atol=1e-6)


def test_nothing_is_learned_from_a_group_that_is_all_wrong() -> None:
    rewards = [-0.3, -0.1, 0.1, 0.3]
    assert_array_equal(revision_advantages(rewards, [0, 0, 0, 0]), np.zeros(4))
    # Plain GRPO has no such guard.
    expected = [-1.161445, -0.387148, 0.387148, 1.161445]
    assert_allclose(grpo.advantages(rewards, scale="std"), expected, atol=1e-6)


def test_numbers_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(ValueError, match=r"rewards of shape \(4,\) .* \(2,\)"):
        revision_advantages([1, 0, 1, 0], [1, 1])
    with pytest.raises(ValueError, match="at least one pair"):
        truncation_accuracy([])


def test_nothing_is_learned_from_a_group_that_agrees() -> None:
    assert_array_equal(revision_advantages([2.5] * 4, [1] * 4), np.zeros(4))


def test_a_pair_on_its_tree() -> None:
    tree = tree_advantages(ADVANTAGES, repair_sources(ACCURACY))
    assert tree.kept_G[0] / 2 == pytest.approx(0.599256, abs=1e-6)
    assert tree.tail_G[0] == pytest.approx(-0.053885)
    assert tree.ending_G[0] == pytest.approx(1.252397)


def test_a_replaced_revision_counts_its_original_twice() -> None:
    tree = tree_advantages(ADVANTAGES, repair_sources(ACCURACY))
    assert_allclose(tree.kept_G[1:3], [-2.720332, -0.301946])
    assert_allclose(tree.tail_G[1:3], [-2.720332, -0.301946])
    assert_array_equal(tree.ending_G[1:3], [0, 0])


def test_tail_loss_of_the_same_group() -> None:
    mean = tail_advantages(ADVANTAGES, ACCURACY, THOUGHT_TOKENS, scale="mean")
    size = 0.769041
    assert_allclose(mean, [-size, size, 0, 0, 0, 0, -size, size], atol=1e-6)
    largest = tail_advantages(ADVANTAGES, ACCURACY, THOUGHT_TOKENS, scale="max")
    assert_allclose(largest, [-1.360166, 1.360166, 0, 0, 0, 0, -1.360166, 1.360166], atol=1e-6)


def test_the_tail_loss_needs_two_tokens() -> None:
    tail = tail_advantages([1, -1, 1, -1], [1, 1, 1, 1], [10, 9, 10, 8], scale="max")
    assert_array_equal(tail, [0, 0, -1, 1])
    with pytest.raises(ValueError, match="scale 'sum' is unknown; use 'mean' or 'max'"):
        tail_advantages([1, -1], [1, 1], [9, 1], scale="sum")


def slow_advantages(rewards: NDArray[np.float64], accuracy: NDArray[np.float64]) -> list[float]:
    """Repair, guard and normalisation, one row at a time."""
    rewards, accuracy = rewards.copy(), accuracy.copy()
    for row in range(1, len(rewards), 2):
        if accuracy[row] <= 0.5:
            rewards[row], accuracy[row] = rewards[row - 1], accuracy[row - 1]
    mean = sum(rewards) / len(rewards)
    deviation = (sum((r - mean) ** 2 for r in rewards) / (len(rewards) - 1)) ** 0.5
    wrong = all(a == 0 for a in accuracy)
    return [0.0 if wrong else (r - mean) / (deviation + 1e-4) for r in rewards]


def repaired(
    rewards: NDArray[np.float64], accuracy: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    sources = repair_sources(accuracy)
    return rewards[sources], accuracy[sources], sources


@given(PAIRS)
def test_advantages_equal_a_slow_loop(pairs: list[tuple[float, bool, float, bool]]) -> None:
    rewards, accuracy = rows_of(pairs)
    kept_rewards, kept_accuracy, sources = repaired(rewards, accuracy)
    advantages = revision_advantages(kept_rewards, kept_accuracy)
    assert_allclose(advantages, slow_advantages(rewards, accuracy), atol=1e-8)
    assert_allclose(advantages.sum(), 0, atol=1e-8)
    pairs_right = [after or not before for _, before, _, after in pairs]
    assert truncation_accuracy(accuracy) == pytest.approx(np.mean(pairs_right))

    tree = tree_advantages(advantages, sources)
    for i, (_, _, _, revised) in enumerate(pairs):
        original, revision = advantages[2 * i : 2 * i + 2]
        # What each token gets if both rows are trained apart.
        assert tree.kept_G[i] == pytest.approx(original + revision)
        assert tree.tail_G[i] == pytest.approx(original + (0 if revised else revision))
        assert tree.ending_G[i] == pytest.approx(revision if revised else 0)


@given(PAIRS, st.randoms())
def test_advantages_do_not_depend_on_the_order_of_the_pairs(
    pairs: list[tuple[float, bool, float, bool]], random: Random
) -> None:
    order = list(range(len(pairs)))
    random.shuffle(order)
    advantages = revision_advantages(*repaired(*rows_of(pairs))[:2])
    shuffled = revision_advantages(*repaired(*rows_of([pairs[i] for i in order]))[:2])
    assert_allclose(shuffled.reshape(-1, 2), advantages.reshape(-1, 2)[order], atol=1e-8)


@given(PAIRS)
def test_all_wrong_is_all_zero(pairs: list[tuple[float, bool, float, bool]]) -> None:
    rewards, accuracy = rows_of(pairs)
    assert_array_equal(revision_advantages(rewards, accuracy * 0), np.zeros(len(rewards)))


@given(
    st.lists(
        st.tuples(st.integers(50, 3000), st.integers(0, 20), st.booleans()),
        min_size=2,
        max_size=16,
    ).filter(lambda rows: len(rows) % 2 == 0)
)
def test_code_and_paper_scale_give_the_same_advantages(rows: list[tuple[int, int, bool]]) -> None:
    lengths = np.array([n for n, _, _ in rows])
    right = np.array([is_right for _, _, is_right in rows])
    # A lone length among the right answers is where the paper's formula and the code part.
    assume(len(set(lengths[right])) != 1)
    accuracy = right.astype(float)
    sources = repair_sources(accuracy)
    by_scale = []
    for kind, scale in (("refined", "code"), ("refined_paper", "paper")):
        reflection = [reflection_reward(k, n, scale=scale) for n, k, _ in rows]
        rewards = accuracy + length_reward(lengths, accuracy, kind) + reflection
        by_scale.append(revision_advantages(rewards[sources], accuracy[sources]))
    assert_allclose(by_scale[0], by_scale[1], atol=1e-8)
