from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from rlsys.algorithms.reflection import (
    count_reflections,
    length_reward,
    reflection_reward,
    reflection_threshold,
)
from rlsys.errors import DataError

LENGTHS = [400, 1000, 700, 300, 900, 250, 700, 300]
CORRECT = [1, 1, 0, 1, 1, 1, 0, 1]
ANSWERS = st.lists(st.tuples(st.integers(1, 5000), st.booleans()), min_size=1, max_size=16)
SNIPPETS = st.lists(
    st.sampled_from(["wait", "Check", "BUT", "alternatively", "x" * 30, "y" * 29, "\n", " ", "s"]),
    max_size=25,
).map("".join)


def test_length_rewards_of_one_question() -> None:
    cases: list[tuple[str, list[float]]] = [
        ("length", [0.3, -0.5, -0.1, 0.433333, -0.366667, 0.5, -0.1, 0.433333]),
        ("refined", [0.3, -0.5, -0.5, 0.433333, -0.366667, 0.5, -0.5, 0.433333]),
        ("refined_paper", [0.8, 0, 0, 0.933333, 0.133333, 1, 0, 0.933333]),
    ]
    for kind, expected in cases:
        assert_allclose(
            length_reward(LENGTHS, CORRECT, kind), expected, atol=1e-6, err_msg=str(kind)
        )


def test_refined_length_reward_with_few_right_answers() -> None:
    assert_allclose(length_reward([500, 300, 400], [1, 0, 0], "refined"), [0, -0.5, -0.5])
    assert_allclose(length_reward([500, 300], [0, 0], "refined"), [-0.5, -0.5])
    assert_allclose(length_reward([500, 300, 500], [1, 0, 1], "refined_paper"), [1, 0, 1])
    assert_allclose(length_reward([500, 300], [0, 0], "refined_paper"), [0, 0])


def test_equal_lengths_earn_nothing() -> None:
    assert_allclose(length_reward([7, 7, 7], [1, 0, 1], "length"), [0, 0, 0])


def test_two_questions_in_one_call_would_be_compared_with_each_other() -> None:
    together = length_reward([100, 200, 1000, 1400], [1, 1, 1, 1], "length")
    assert_allclose(together, [0.5, 0.423077, -0.192308, -0.5], atol=1e-6)
    apart = [length_reward(pair, [1, 1], "refined") for pair in ([100, 200], [1000, 1400])]
    assert_allclose(np.concatenate(apart), [0.5, -0.5, 0.5, -0.5])


def test_every_answer_has_a_length() -> None:
    with pytest.raises(ValueError, match="2 lengths do not fit 1 answers"):
        length_reward([1, 2], [1], "refined")


def test_unknown_length_reward() -> None:
    with pytest.raises(ValueError, match="length reward 'kimi' is unknown; use 'length'"):
        length_reward([1], [1], "kimi")


def slow_length_reward(lengths: list[int], correct: list[bool], kind: str) -> list[float]:
    """The rules one answer at a time."""
    among = [n for n, right in zip(lengths, correct, strict=True) if right or kind == "length"]
    rewards = []
    for length, right in zip(lengths, correct, strict=True):
        same = not among or min(among) == max(among)
        share = 0.0 if same else (length - min(among)) / (max(among) - min(among))
        score = 0.0 if same else 0.5 - share
        match kind:
            case "length":
                rewards.append(score if right else min(0.0, score))
            case "refined":
                rewards.append(score if right else -0.5)
            case "refined_paper":
                rewards.append(1.0 - share if right else 0.0)
    return rewards


@given(ANSWERS, st.sampled_from(["length", "refined", "refined_paper"]), st.integers(0, 1000))
def test_length_rewards_equal_a_slow_loop_within_bounds_and_ignore_shifts(
    answers: list[tuple[int, bool]], kind: str, shift: int
) -> None:
    lengths, correct = [n for n, _ in answers], [right for _, right in answers]
    rewards = length_reward(lengths, correct, kind)
    assert_allclose(rewards, slow_length_reward(lengths, correct, kind), atol=1e-12)
    low = 0.0 if kind == "refined_paper" else -0.5
    assert rewards.min() >= low and rewards.max() <= low + 1
    assert_allclose(length_reward(np.add(lengths, shift), correct, kind), rewards, atol=1e-12)


@given(ANSWERS)
def test_paper_and_code_scale_differ_by_a_constant(answers: list[tuple[int, bool]]) -> None:
    lengths, correct = [n for n, _ in answers], [right for _, right in answers]
    right_lengths = {n for n, right in answers if right}
    assume(len(right_lengths) != 1)
    code, paper = (length_reward(lengths, correct, kind) for kind in ("refined", "refined_paper"))
    assert_allclose(paper, code + 0.5, atol=1e-12)


def test_reflections_as_published() -> None:
    cases: list[tuple[str, int]] = [
        ("Wait, but let me check that. So x=3.", 1),
        ("x=3. Wait.\nBut is it? Alternatively, use y.", 2),
        ("The distribution of attributes contributes nothing.", 1),
        ("wait" + "z" * 62 + "check", 2),
        ("wait" + "z" * 59 + "check", 1),
        ("wait" + "z" * 60 + "check", 2),
        ("<think>ok wait</think> but check", 1),
        ("but <think> wait\nwait <think> check", 1),
        ("wait</think>but</think>", 1),
        ("no keywords here", 0),
        ("", 0),
    ]
    for text, count in cases:
        assert count_reflections(text, "published") == count, text


def test_reflections_as_words() -> None:
    cases: list[tuple[str, int]] = [
        ("Wait, but let me check that. So x=3.", 1),
        ("x=3. Wait.\nBut is it? Alternatively, use y.", 2),
        ("The distribution of attributes contributes nothing.", 0),
        ("I checked the button\nand waited", 0),
        ("check_1", 0),
        ("(wait)\n-check-\nbut", 3),
        ("<think>ok wait</think> but check", 1),
    ]
    for text, count in cases:
        assert count_reflections(text, "words") == count, text


def test_the_words_can_be_chosen() -> None:
    assert count_reflections("hmm, wait\nHMM\nhmmm", "words", words=["hmm"]) == 2
    chain = "3+8=11;11-2=9?3+8=11;11-2=9?3+8=11;11-2=9"
    assert count_reflections(chain, "words", words=["?"]) == 1
    assert count_reflections(chain, "words", words=["?"], gap=0) == 2
    assert count_reflections("a+b a+bc xa+b", "words", words=["a+b"], gap=0) == 1


def test_words_that_stand_everywhere_are_refused() -> None:
    cases: list[list[str]] = [[], ["wait", ""]]
    for words in cases:
        with pytest.raises(ValueError, match="found everywhere"):
            count_reflections("x", "words", words=words)


def test_unknown_mode() -> None:
    with pytest.raises(ValueError, match="mode 'regex' is unknown; use 'published' or 'words'"):
        count_reflections("", "regex")


@given(SNIPPETS)
def test_reflections_equal_one_regular_expression(text: str) -> None:
    keyword = "(?:wait|alternatively|check|but)"
    clusters = re.findall(f"(?i){keyword}(?:.{{0,59}}{keyword})*", text)
    assert count_reflections(text, "published") == len(clusters)
    assert count_reflections(text, "words") <= len(re.findall(f"(?i){keyword}", text))


def test_reflection_rewards() -> None:
    cases: list[tuple[int, int, float, float, float, float]] = [
        (4, 900, 1, 0, 1, 0.696),
        (2, 900, 0.5002, -0.4998, 0.664689, 0.348),
        (0, 900, 0, -1, 0, 0),
        (8, 1000, 1, 0, 1, 1),
        (1, 600, 0.37515, -0.62485, 0.498517, 0.261),
        (0, 0, 0, -1, 0, 0),
    ]
    for count, tokens, code, paper, lax, strict in cases:
        assert reflection_reward(count, tokens) == pytest.approx(code, abs=1e-6), (
            tokens,
            paper,
            lax,
        )
        assert reflection_reward(count, tokens, scale="paper") == pytest.approx(paper, abs=1e-6), (
            tokens,
            paper,
            lax,
        )
        assert reflection_reward(count, tokens, 299.11) == pytest.approx(lax, abs=1e-6), (
            tokens,
            paper,
            lax,
        )
        assert reflection_reward(count, tokens, 156.60) == pytest.approx(strict, abs=1e-6), (
            tokens,
            paper,
            lax,
        )


def test_unknown_reward_scale() -> None:
    with pytest.raises(ValueError, match="scale 'log' is unknown; use 'code' or 'paper'"):
        reflection_reward(1, 1, scale="log")


DENSITIES = [0.0012, 0.0031, 0.0040, 0.0047, 0.0058, 0.0063, 0.0071, 0.0090, 0.0102, 0.0121]
COUNTS = [12, 31, 40, 47, 58, 63, 71, 90, 102, 121]


def test_threshold_of_a_corpus_by_both_definitions() -> None:
    assert_allclose(np.divide(COUNTS, 10_000), DENSITIES)
    tokens = [10_000] * 10
    density = reflection_threshold(COUNTS, tokens, method="density")
    assert density == pytest.approx(261.780105, abs=1e-6)
    assert 1 / density == pytest.approx(0.00382)
    assert reflection_threshold(COUNTS, tokens) == pytest.approx(264.516129, abs=1e-6)


def test_published_thresholds() -> None:
    cases: list[tuple[float, float]] = [(225.09, 0.004443), (299.11, 0.003343), (156.60, 0.006386)]
    for interval, density in cases:
        assert 1 / interval == pytest.approx(density, abs=1e-6), (interval, density)


def test_thoughts_without_reflection_or_tokens() -> None:
    # 300 stands in for its own interval, the empty thought is left out.
    assert reflection_threshold([0, 1, 2, 5], [300, 100, 100, 0], quantile=0.5) == 100
    assert reflection_threshold([0, 1, 2], [300, 100, 100], quantile=0) == 300
    with pytest.raises(DataError, match=r"the 0\.2 quantile of reflections per token is 0"):
        reflection_threshold([0, 0, 1], [100, 100, 100], method="density")
    with pytest.raises(DataError, match="no thought of the corpus has tokens"):
        reflection_threshold([], [])
    with pytest.raises(ValueError, match="method 'mean' is unknown"):
        reflection_threshold([1], [1], method="mean")


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 9000)), min_size=2, max_size=30))
def test_a_share_of_the_corpus_falls_short(thoughts: list[tuple[int, int]]) -> None:
    counts, tokens = [k for k, _ in thoughts], [n for _, n in thoughts]
    for method in ("interval", "density"):
        threshold = reflection_threshold(counts, tokens, method=method)
        rewards = [reflection_reward(k, n, threshold * (1 + 1e-9)) for k, n in thoughts]
        assert sum(reward < 1 for reward in rewards) <= np.ceil(0.2 * len(thoughts))
