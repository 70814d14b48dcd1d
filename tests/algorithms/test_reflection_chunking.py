from __future__ import annotations

import re
from itertools import accumulate, pairwise

from hypothesis import given
from hypothesis import strategies as st

from rlsys.algorithms.reflection import chunk_thought, chunks, split_pieces, windows

COUNTS = st.lists(st.tuples(st.integers(1, 200), st.sampled_from(".!?;,:x")), max_size=40)
TEXTS = st.text("ab.;? \n", max_size=80)


def test_pieces_join_to_chunks() -> None:
    cases: list[tuple[list[int], str, list[list[int]]]] = [
        ([10, 25, 40, 100, 5, 130, 3, 7], "...,.,.h", [[0, 1], [2], [3, 4], [5], [6, 7]]),
        ([], "", []),
        ([31, 1], "..", [[0, 1]]),
        ([32, 1], "..", [[0], [1]]),
        # Without the end of a sentence a chunk is extended until it would reach 128.
        ([100, 27, 1, 1], ",,,,", [[0, 1], [2, 3]]),
        ([128, 1], ",.", [[0], [1]]),
        # A long piece behind a waiting one stays open, and the next sentence joins it.
        ([1, 130, 3, 7], ",,..", [[0], [1, 2], [3]]),
        ([1, 130, 3, 7], ",,,.", [[0], [1], [2, 3]]),
        ([1, 130], ",.", [[0, 1]]),
        ([40, 40, 40], "!;?", [[0], [1], [2]]),
    ]
    for token_counts, last_characters, expected in cases:
        assert chunks(token_counts, last_characters) == expected, (token_counts, last_characters)


def test_sizes_of_the_first_vector() -> None:
    token_counts = [10, 25, 40, 100, 5, 130, 3, 7]
    joined = chunks(token_counts, "...,.,.h")
    assert [sum(token_counts[i] for i in chunk) for chunk in joined] == [35, 40, 105, 130, 10]


def test_every_piece_is_a_chunk_if_a_chunk_holds_one_token() -> None:
    assert chunks([7, 1, 6], ["1", "9", "9"], least=1, most=1) == [[0], [1], [2]]


@given(COUNTS, st.integers(1, 50), st.integers(0, 150))
def test_chunks_partition_the_pieces_and_obey_the_sizes(
    pieces: list[tuple[int, str]], least: int, more: int
) -> None:
    token_counts, last_characters = [n for n, _ in pieces], [c for _, c in pieces]
    most = least + more
    joined = chunks(token_counts, last_characters, least=least, most=most)

    assert [i for chunk in joined for i in chunk] == list(range(len(pieces)))
    for number, chunk in enumerate(joined):
        totals = list(accumulate(token_counts[i] for i in chunk))
        stops = [
            total >= least and last_characters[i] in "!.;?"
            for i, total in zip(chunk, totals, strict=True)
        ]
        # Inside a chunk nothing ended it, and only a long piece that opened it passes the limit.
        assert not any(stops[:-1])
        assert all(total < most for total in totals[1:-1])
        assert len(chunk) == 1 or totals[-1] < most or stops[-1]
        # Something ended it: a sentence, its own length, or the piece that follows.
        if number < len(joined) - 1:
            following = token_counts[joined[number + 1][0]]
            assert stops[-1] or totals[-1] + following >= most


def test_windows_hold_consecutive_chunks() -> None:
    cases: list[tuple[list[int], int, list[list[int]]]] = [
        ([300, 400, 300, 100, 900, 200], 1024, [[0, 1, 2], [3, 4], [5]]),
        ([], 1024, []),
        ([1024, 1], 1024, [[0], [1]]),
        ([2000, 5, 2000], 1024, [[0], [1], [2]]),
    ]
    for token_counts, most, expected in cases:
        assert windows(token_counts, most) == expected, (token_counts, most)


@given(st.lists(st.integers(1, 60), max_size=30))
def test_windows_partition_the_chunks_and_are_full(token_counts: list[int]) -> None:
    packed = windows(token_counts, 50)
    assert [i for window in packed for i in window] == list(range(len(token_counts)))
    for window, following in pairwise(packed):
        total = sum(token_counts[i] for i in window)
        assert total <= 50 or len(window) == 1
        assert total + token_counts[following[0]] > 50


def test_pieces_lie_between_blank_lines_without_white_space_around_them() -> None:
    text = " \n\n a b \nc \n\n\n\n \n\nd."
    assert [text[start:end] for start, end in split_pieces(text)] == ["a b \nc", "d."]
    assert split_pieces(" \n\n ") == []


def test_a_separator_that_is_a_place_takes_nothing_away() -> None:
    text = "3+8=11;11-2=9?3+8=11"
    pieces = [text[start:end] for start, end in split_pieces(text, r"(?=[;?])")]
    assert pieces == ["3+8=11", ";11-2=9", "?3+8=11"]


@given(TEXTS)
def test_pieces_are_what_a_plain_split_finds(text: str) -> None:
    expected = [part.strip() for part in re.split(r"\n{2,}", text) if part.strip()]
    assert [text[start:end] for start, end in split_pieces(text)] == expected


def test_a_thought_is_chunked_on_its_own_tokens() -> None:
    # "\n\n" comes alone, glued to a full stop, and in two halves.
    token_texts = ["So", " x", "=", "3", ".\n\n", "Wait", ",", "\n\n", "no", ".", "\n", "\n", "Yes"]
    thought = chunk_thought(token_texts, least=3, most=6)
    assert [thought.text[piece.start : piece.end] for piece in thought.pieces] == [
        "So x=3.",
        "Wait,",
        "no.",
        "Yes",
    ]
    assert [(piece.tokens, piece.token_end) for piece in thought.pieces] == [
        (5, 5),
        (2, 7),
        (2, 10),
        (1, 13),
    ]
    assert thought.chunks == ((0,), (1, 2), (3,))
    assert thought.texts == ["So x=3.", "Wait,\n\nno.", "Yes"]
    assert thought.token_counts == [5, 4, 1]
    assert [thought.kept_tokens(cut) for cut in range(3)] == [5, 10, 10]


def test_a_cut_that_keeps_everything_drops_the_last_piece() -> None:
    assert chunk_thought(["a", "\n\n", "b", "\n\n", "c"]).kept_tokens(0) == 3
    assert chunk_thought(["a", "b"]).kept_tokens(0) == 0


def test_a_thought_of_nothing_has_no_chunks() -> None:
    assert chunk_thought([]).chunks == ()
    assert chunk_thought([" ", "\n\n"]).chunks == ()


def test_half_a_character_belongs_to_the_piece_of_the_whole_one() -> None:
    # Three tokens make one character; the first two add no text.
    thought = chunk_thought(["a", ".", "\n\n", "", "", "日", "b"], least=1, most=9)
    assert [piece.tokens for piece in thought.pieces] == [2, 4]
    assert thought.kept_tokens(0) == 2


@given(TEXTS, st.data())
def test_cuts_keep_whole_pieces_whatever_the_tokens(text: str, data: st.DataObject) -> None:
    places = data.draw(st.lists(st.integers(0, len(text)), max_size=30))
    ends = sorted([*places, len(text)])
    token_texts = [text[a:b] for a, b in pairwise([0, *ends])]
    thought = chunk_thought(token_texts, least=4, most=8)
    assert thought.text == text
    for number, piece in enumerate(thought.pieces):
        kept = "".join(token_texts[: piece.token_end])
        assert kept.startswith(text[: piece.end])
        # One token less, apart from those that add nothing, and the piece would be incomplete.
        assert len("".join(token_texts[: piece.token_end - 1])) < piece.end
        overlapping = sum(
            a < piece.end and b > piece.start for a, b in pairwise([0, *ends]) if a < b
        )
        empty = sum(a == b and piece.start <= a < piece.end for a, b in pairwise([0, *ends]))
        assert piece.tokens == overlapping + empty
        assert number == 0 or piece.token_end >= thought.pieces[number - 1].token_end
    for cut in range(len(thought.chunks)):
        assert thought.kept_tokens(cut) <= thought.pieces[thought.chunks[cut][-1]].token_end
