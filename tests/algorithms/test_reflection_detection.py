from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from rlsys.algorithms.reflection import cut_index, label_probability, last_cut, read_labels

PROBABILITIES = st.sampled_from([0.0, 0.1, 0.25, 0.3, 0.5, 0.6, 0.9, 1.0]) | st.floats(0, 1)


def position(**shares: float) -> list[tuple[float, str]]:
    """Candidates of a position from the probability of each text."""
    return [(math.log(share), text) for text, share in shares.items()]


def reply(*texts: str) -> list[list[tuple[float, str]]]:
    """Positions at which the engine was certain of each text."""
    return [[(math.log(0.9), text), (math.log(0.1), "~")] for text in texts]


def test_probability_of_result_among_the_labels() -> None:
    label = [(math.log(0.70), " Think"), (math.log(0.20), " Result"), (math.log(0.05), "Think")]
    assert label_probability([*label, (math.log(0.01), "x")]) == pytest.approx(0.210526, abs=1e-6)
    newline = [(math.log(0.9), "\n\n"), (math.log(0.1), " Result")]
    assert label_probability(newline) is None
    label = [(math.log(0.60), " Result"), (math.log(0.30), " Think"), (math.log(0.05), "Result")]
    label += [(math.log(0.02), " think")]
    assert label_probability(label) == pytest.approx(0.670103, abs=1e-6)


def test_the_most_likely_candidate_decides_whether_it_is_a_label() -> None:
    assert label_probability([]) is None
    assert label_probability(position(Think=0.2, Result=0.3, other=0.5)) is None
    # In any order; case counts for the most likely one only.
    assert label_probability(position(result=0.3, Think=0.7)) == pytest.approx(0.3)
    assert label_probability(position(result=0.7, Think=0.3)) is None


def test_labels_may_be_other_words() -> None:
    candidates = position(T=0.6, R=0.3, x=0.1)
    assert label_probability(candidates, think="T", result="R") == pytest.approx(1 / 3)


def test_tiny_probabilities_do_not_vanish() -> None:
    assert label_probability([(-1000.0, "Think"), (-1000.0, "Result")]) == 0.5


def test_candidates_without_probability_say_nothing() -> None:
    impossible = (-math.inf, "Result")
    assert label_probability([impossible]) is None
    assert label_probability([(-0.1, "Think"), impossible]) == 0.0


def test_a_candidate_with_both_labels_does_not_cut() -> None:
    assert label_probability([(-0.1, "ThinkResult")]) == 0.0


def test_labels_are_matched_to_their_numbers() -> None:
    reading = read_labels(
        reply(" Think", "\n\n", "[", "2", "].", " Result", "\n\n[3].", " Think"), 3
    )
    assert_allclose(reading.probabilities_N, [0, 1, 0])
    assert (reading.missing, reading.extra) == (0, 0)


def test_a_skipped_label_does_not_shift_the_others() -> None:
    reading = read_labels(reply(" Think", "\n\n[3].", " Result", "\n\n[4].", " Think"), 4)
    assert_allclose(reading.probabilities_N, [0, 0, 1, 0])
    assert (reading.missing, reading.extra) == (1, 0)


def test_labels_of_no_new_chunk_are_ignored() -> None:
    cases: list[list[str]] = [
        ["\n\n[1].", " Result"],
        [" or", " Result"],
        ["\n\n[0].", " Result"],
        ["\n\n[7].", " Result"],
        ["\n\n[99999999999999].", " Result"],
    ]
    for doubled in cases:
        reading = read_labels(reply(" Think", *doubled, "\n\n[2].", " Result"), 2)
        assert_allclose(reading.probabilities_N, [0, 1], err_msg=str(doubled))
        assert (reading.missing, reading.extra) == (0, 1), doubled


def test_a_reply_of_nothing_misses_every_label() -> None:
    reading = read_labels([], 3)
    assert_allclose(reading.probabilities_N, [0, 0, 0])
    assert (reading.missing, reading.extra) == (3, 0)
    assert read_labels([[], *reply("no", " idea")], 3).missing == 3


@given(st.lists(st.booleans(), min_size=1, max_size=12), st.data())
def test_readings_survive_any_loss_of_lines(labels: list[bool], data: st.DataObject) -> None:
    kept = data.draw(st.lists(st.booleans(), min_size=len(labels), max_size=len(labels)))
    texts = ["\n"]
    for number, (label, keep) in enumerate(zip(labels, kept, strict=True), start=1):
        texts += [f"[{number}].", " Result" if label else " Think", "\n\n"] if keep else []
    reading = read_labels(reply(*texts), len(labels), prefill="")
    expected = [float(label and keep) for label, keep in zip(labels, kept, strict=True)]
    assert_allclose(reading.probabilities_N, expected)
    assert (reading.missing, reading.extra) == (kept.count(False), 0)


CUTS = {
    "a": ([0.02, 0.05, 0.30, 0.10, 0.55, 0.62, 0.20, 0.70, 0.90, 0.10], 5, 5, 7, 4),
    "b": ([0.01] * 10, 8, 8, 8, 8),
    "c": ([0.9, 0.8, 0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.05, 0.05], 0, 8, 8, 0),
    "d": ([0.1] * 9 + [0.95], 8, 8, 8, 8),
    "e": ([0.3, 0.26, 0.4, 0.2, 0.45, 0.49, 0.51, 0.9], 6, 6, 7, 6),
    "f": ([0.6], 0, 0, 0, 0),
    "g": ([0.0] * 100, 94, 94, 94, 94),
}
"""Probabilities, then the cuts strong, normal, weak and first."""


def test_cuts() -> None:
    for name in CUTS:
        p, strong, normal, weak, first = CUTS[name]
        assert cut_index(p, "strong") == strong, name
        assert cut_index(p, "normal") == normal, name
        assert cut_index(p, "weak") == weak, name
        assert cut_index(p, "first") == first, name


def test_strong_looks_everywhere_if_nothing_is_sure() -> None:
    # The best hint is past the last cut, and is limited to it afterwards.
    p = [0.0, 0.3, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.4]
    assert cut_index(p, "strong") == 8
    assert cut_index([0.0, 0.3, 0.3, *[0.0] * 7], "strong") == 1


def test_weak_goes_on_to_the_next_statement() -> None:
    p = [0.0] * 4 + [0.6, 0.6, 0.1, 0.6]
    assert (cut_index(p, "normal"), cut_index(p, "weak")) == (4, 7)
    assert cut_index([*p[:7], 0.1], "weak") == 5


def test_up_to_five_chunks_always_go() -> None:
    cases: list[tuple[int, int]] = [
        (1, 0),
        (9, 8),
        (10, 8),
        (29, 27),
        (30, 27),
        (89, 84),
        (90, 84),
        (500, 494),
    ]
    for num_chunks, last in cases:
        assert last_cut(num_chunks) == last, num_chunks


def test_nothing_to_cut() -> None:
    with pytest.raises(ValueError, match="a thought without chunks cannot be cut"):
        cut_index([], "normal")
    with pytest.raises(ValueError, match="strength 'Weak' is unknown; use 'normal', 'weak'"):
        cut_index([0.5], "Weak")


def slow_cut(p: list[float], strength: str) -> int:
    """The rules one chunk at a time."""
    chunks = range(len(p))
    cap = len(p) - 1 - min(math.floor((len(p) + 10) / 20), 5)
    sure = [i for i in chunks if p[i] >= 0.5]
    late = [i for i in sure if i >= len(p) / 2]
    cut = late[0] if late else cap
    if strength == "first" and sure:
        cut = sure[0]
    if strength == "strong":
        hints = [i for i in chunks if p[i] >= 0.25 and (not late or i <= late[0])]
        cut = min(hints, key=lambda i: (-p[i], i), default=cut)
    if strength == "weak" and late:
        gaps = [(i, j) for i, j in pairwise(late) if j > i + 1]
        cut = gaps[0][1] if gaps else late[-1]
    return min(cut, cap)


@given(
    st.lists(PROBABILITIES, min_size=1, max_size=130),
    st.sampled_from(["normal", "weak", "strong", "first"]),
)
def test_cuts_equal_a_slow_loop_and_stay_in_bounds(p: list[float], strength: str) -> None:
    cut = cut_index(p, strength)
    assert cut == slow_cut(p, strength)
    assert 0 <= cut <= last_cut(len(p)) < len(p)
    assert cut == cut_index(tuple(p), strength)


@given(st.lists(PROBABILITIES, min_size=1, max_size=60))
def test_stronger_cuts_earlier(p: list[float]) -> None:
    normal = cut_index(p, "normal")
    assert cut_index(p, "first") <= normal <= cut_index(p, "weak")
    if normal < last_cut(len(p)):
        assert cut_index(p, "strong") <= normal
