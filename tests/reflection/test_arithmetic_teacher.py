"""The programmatic teacher against traces whose answer is known, and against texts by hand."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rlsys.algorithms.reflection import ChunkedThought, chunk_thought
from rlsys.config import TraceHabits
from rlsys.data.arithmetic import arithmetic_problem, draw_texts
from rlsys.reflection.labelling.arithmetic import result_chunks
from rlsys.sft.traces import draw_trace

STEPS = r"(?=[;?])"


def chunks_of(text: str, most: int = 1) -> ChunkedThought:
    return chunk_thought(list(text), separator=STEPS, most=most, least=most)


def test_texts_by_hand() -> None:
    cases: list[tuple[str, tuple[int, ...]]] = [
        ("3+8=11;11-2=9", (1,)),
        ("11;9", (1,)),
        ("3+8=11;11-2=9?3+8=11;11-2=9", (1, 3)),
        ("3+8=12;12-2=10?3+8=11;11-2=9", (3,)),  # a slip, found by the re-check
        ("3+8=12;12-2=10", ()),
        ("3+8=11;11-2=", ()),  # cut off
        ("3+8=9;11-2=9", (1,)),  # a total on the way that happens to be the answer
        ("3+8=11;11-2=9;9", (1,)),
        ("3+8=11;;11-2=9", (2,)),  # a lone mark is a chunk, not a step
        ("?11;9", (1,)),
        ("3+8=12?3+8=11;11-2=9", (2,)),  # a step checked, and mended
        ("3+8=11;11-2=8?11-2=9", (2,)),
        ("3+8=11;11-2=9?11-2=9", (1, 2)),  # a last step checked states the answer once more
        ("3+8=11?3+8=11?3+8=11;11-2=9", (3,)),
        ("nine", ()),
        ("", ()),
    ]
    for text, expected in cases:
        assert result_chunks(arithmetic_problem("3+8-2", "p"), chunks_of(text)) == expected, text


def test_an_answer_inside_a_longer_chunk_is_the_chunks() -> None:
    problem = arithmetic_problem("3+8-2", "p")
    thought = chunks_of("3+8=11;11-2=9?3+8=11;11-2=9", most=18)
    assert thought.texts == ["3+8=11;11-2=9", "?3+8=11;11-2=9"]
    assert result_chunks(problem, thought) == (0, 1)


def test_a_cut_total_is_not_taken_for_a_shorter_one() -> None:
    problem = arithmetic_problem("9+9-8", "p")  # 10, cut after its first digit
    assert result_chunks(problem, chunks_of("9+9=18;18-8=1")) == ()


def test_a_chain_that_begins_as_the_last_one_ended_is_no_check() -> None:
    problem = arithmetic_problem("3+8-8+8", "p")
    chain = "3+8=11;11-8=3;3+8=11"
    assert result_chunks(problem, chunks_of(f"{chain}?{chain}")) == (2, 5)
    assert result_chunks(problem, chunks_of(f"{chain}?3+8=11")) == (2, 3)


@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.5]))
def test_the_chunks_found_are_the_right_conclusions_of_the_trace(seed: int, check: float) -> None:
    rng = np.random.default_rng(seed)
    (text,) = draw_texts(rng, (2, 8), held_out=False, size=1)
    problem = arithmetic_problem(text, "p")
    trace = draw_trace(problem, rng, TraceHabits(check=check, slip=0.1))
    thought = chunks_of(trace.thought)
    found = result_chunks(problem, thought)
    stated = [
        i for i, s in enumerate(trace.steps) if s.concludes and str(s.total) == problem.answer
    ]
    assert list(found) == stated
