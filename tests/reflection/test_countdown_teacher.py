"""The teacher of Countdown searches against drawn searches, and against texts by hand."""

from __future__ import annotations

import numpy as np
import pytest

from rlsys.algorithms.reflection import ChunkedThought, chunk_thought
from rlsys.config import CountdownShape, SearchHabits
from rlsys.data.countdown import draw_puzzles
from rlsys.errors import DataError
from rlsys.reflection.labelling.countdown import result_chunks
from rlsys.sft.countdown import FOUND, draw_search
from rlsys.types import Problem

MARKS = "(?=[<!?])"


def problem(text: str) -> Problem:
    return Problem(id="p", text=text, answer=text)


def chunks_of(text: str) -> ChunkedThought:
    return chunk_thought(list(text), separator=MARKS, most=1, least=1)


def test_texts_by_hand() -> None:
    cases: list[tuple[str, tuple[int, ...]]] = [
        ("44-19=25:25,35;25+35=60<19,35,44;44+35=79:19,79;79+19=98!44+35=79;79+19=98", (1, 2)),
        ("44+35=79:19,79;44-19=25:25,35<19,79;79+19=98", (1,)),  # breadth first
        ("44+35=79:19,79;79+19=98", (0,)),
        ("44+35=79:19,79;19+79=98", (0,)),
        ("44+35=79:19,79;79+19=9", ()),  # cut off
        ("44+35=79:19,79;79-19=98", ()),  # computed wrong
        ("44+35=117:19,117;117-19=98", ()),  # computed wrong before
        ("44+35=79:19,78;78+20=98", ()),  # numbers that are not left
        ("44+35=79:19,80;79+19=98", ()),  # the numbers left are written down wrong
        ("79+19=98", ()),  # numbers that were not reached
        ("44+35=79:19,79<19,35,44!44+35=79;79+19=98", (2,)),  # reached in the solution only
        ("44+35=79:19,79?44+35=79;79-19=60", ()),
        ("98", ()),
        ("", ()),
    ]
    for text, expected in cases:
        assert result_chunks(problem("19,35,44->98"), chunks_of(text)) == expected, text


def test_equal_numbers_are_used_as_often_as_they_are_given() -> None:
    given = problem("3,3,5->11")
    assert result_chunks(given, chunks_of("5+3=8:3,8;8+3=11")) == (0,)
    assert result_chunks(given, chunks_of("3+3=6:5,6;6+5=11")) == (0,)
    assert result_chunks(given, chunks_of("5+5=10:3,3;3+3=6")) == ()


def test_a_drawn_search_reaches_its_target_where_it_says_so() -> None:
    rng = np.random.default_rng(0)
    shape = CountdownShape(difficulty=(3, 4))
    for puzzle in draw_puzzles(rng, shape, held_out=False, size=200):
        search = draw_search(puzzle, rng, SearchHabits())
        thought = chunks_of(search.thought)
        found = [i for i, text in enumerate(thought.texts) if text.startswith(FOUND)]
        # Before the mark, in the last step of the search, and after it, in that of the solution.
        expected = (found[0] - 1, found[0]) if found else ()
        assert search.solved == bool(found)
        assert result_chunks(problem(puzzle.text), thought) == expected, search.thought


def test_another_kind_of_problem_is_named() -> None:
    with pytest.raises(DataError, match=r"problem 'p' has the answer '11', and teacher\.type"):
        result_chunks(Problem(id="p", text="3+8=", answer="11"), chunks_of("3+8=11"))
