"""Written searches for Countdown, and the supervised rows that are made of them."""

import re

import numpy as np
import pytest
from pydantic import ValidationError

from rlsys.config import AnytimeConfig, CountdownShape, CountdownTraces, SearchHabits, SftConfig
from rlsys.data.countdown import Puzzle, Step, draw_puzzles, is_held_out
from rlsys.grading.compare import extract_answer
from rlsys.grading.countdown import countdown_gold, solves
from rlsys.sft.countdown import (
    SearchTrace,
    draw_search,
    nearest_factor,
    nearest_number,
    written_steps,
)
from rlsys.sft.rows import SupervisedRows, supervised_rows
from rlsys.sft.tiny_model import tiny_tokenizer
from rlsys.tokenization.think import ThinkTokens
from rlsys.types import Kind, Sample

TOKENIZER = tiny_tokenizer()
PUZZLE = Puzzle((19, 35, 44), 98, (Step(44, "+", 35, 79), Step(79, "+", 19, 98)))


def search(**habits: object) -> SearchTrace:
    return draw_search(PUZZLE, np.random.default_rng(0), SearchHabits.model_validate(habits))


def draw(
    count: int, habits: SearchHabits, difficulty: tuple[int, int] = (3, 4)
) -> list[SearchTrace]:
    rng = np.random.default_rng(1)
    puzzles = draw_puzzles(rng, CountdownShape(difficulty=difficulty), False, count)
    return [draw_search(puzzle, rng, habits) for puzzle in puzzles]


def test_a_search_breadth_first_writes_all_steps_of_a_level_before_the_next() -> None:
    trace = search(breadth_first=1, blind=0, width=(3, 3))
    root, *deeper = trace.thought.split("<")
    assert re.fullmatch(r"(\d+.\d+=\d+:\d+,\d+;?){3}", root)
    visited = [text.partition(";")[0] for text in deeper]
    assert visited == re.findall(r":(\d+,\d+)", root)[: len(visited)]


def test_a_search_depth_first_returns_before_every_further_step() -> None:
    trace = search(breadth_first=0, blind=1, width=(9, 9))
    returns = re.findall(r"<([\d,]+)", trace.thought)
    assert set(returns) == {"19,35,44"}
    assert len(returns) == trace.thought.count(":") - 1


def test_a_wide_search_finds_the_target_and_ends_with_the_solution() -> None:
    trace = search(width=(12, 12))
    assert trace.solved
    found, _, path = trace.thought.partition("!")
    assert path == ";".join(step.text for step in trace.steps)
    assert found.endswith(trace.steps[-1].text)
    assert solves(trace.answer, PUZZLE.text)


def test_claims_of_success_and_failure_are_true() -> None:
    for habits in (SearchHabits(), SearchHabits(longest=20), SearchHabits(width=(1, 1))):
        traces = draw(400, habits, difficulty=(2, 5))
        for trace in traces:
            assert trace.solved == solves(trace.answer, trace.puzzle.text), trace
            assert ("!" in trace.thought, "?" in trace.thought) == (trace.solved, not trace.solved)
            assert trace.answer.count("(") == len(trace.puzzle.numbers) - 2
        assert 0 < np.mean([trace.solved for trace in traces]) < 1


def test_every_step_of_a_thought_is_computed_right() -> None:
    for trace in draw(200, SearchHabits()):
        for left, right in re.findall(r"(\d+[-+*/]\d+)=(\d+)", trace.thought):
            assert eval(left) == int(right)


def test_lengths_of_thoughts() -> None:
    """From a few dozen tokens to the limit, so that budgets of 128 to 1,024 tokens all cut some."""
    habits = SearchHabits(longest=1000)
    lengths = np.array([len(trace.thought) for trace in draw(1000, habits, difficulty=(4, 4))])
    assert lengths.max() < 1000 + 200
    assert [int(np.mean(lengths > budget) * 10) for budget in (128, 256, 512, 1024)] == [7, 5, 2, 0]
    solved = [trace.solved for trace in draw(1000, habits, difficulty=(4, 4))]
    assert 0.7 < np.mean(solved) < 0.9


def test_searches_that_are_led_are_shorter_than_blind_ones() -> None:
    def median(blind: float) -> float:
        habits = SearchHabits(blind=blind, width=(12, 12), longest=4000)
        return float(np.median([len(t.thought) for t in draw(300, habits, difficulty=(4, 4))]))

    assert median(0) < 0.8 * median(1)


def test_heuristics() -> None:
    assert nearest_number((35, 44), 98) == 54
    assert nearest_factor((35, 44), 98) == 5  # 49 is a factor
    assert nearest_factor((35, 44), 1) == 34


def test_a_width_that_shrinks_is_refused() -> None:
    with pytest.raises(ValidationError, match="width"):
        SearchHabits(width=(4, 2))


def rows(**settings: object) -> SupervisedRows:
    data = CountdownTraces.model_validate(settings)
    return supervised_rows(SftConfig(data=data), TOKENIZER)


def texts(sample: Sample) -> list[str]:
    return [TOKENIZER.decode(segment.token_ids) for segment in sample.segments]


def test_rows_are_laid_out_as_episodes() -> None:
    environment = AnytimeConfig(closing="", answer_header="\n\n**Final Answer**\n\\boxed{")
    think = ThinkTokens.resolve(TOKENIZER, environment)
    cuts = 0
    for sample in rows(cut=0.5).samples(step=0, count=60):
        assert [s.kind for s in sample.segments] == [
            Kind.PROMPT,
            Kind.THOUGHT,
            Kind.FORCED,
            Kind.ANSWER,
        ]
        prompt, thought, forced, answer = texts(sample)
        gold = prompt.removeprefix("<bos>").removesuffix("=<think>")
        numbers = countdown_gold(gold)
        assert numbers is not None and not is_held_out(numbers.numbers)
        cut = not thought.endswith("</think>")
        expected = think.cut_ids if cut else think.header_ids
        assert sample.segments[2].token_ids.tolist() == expected.tolist()
        written = extract_answer(forced + answer.removesuffix("<eos>"))
        assert written is not None
        # A cut row is answered right; any other says what its search found.
        assert solves(written, gold) == (cut or "!" in thought)
        cuts += cut
    assert 15 < cuts < 45


def test_rows_depend_on_seed_and_step_alone() -> None:
    first, again = rows(seed=1), rows(seed=1)
    first.samples(3, 8)
    assert list(map(texts, first.samples(4, 8))) == list(map(texts, again.samples(4, 8)))
    assert list(map(texts, first.samples(4, 8))) != list(map(texts, first.samples(5, 8)))
    assert list(map(texts, first.samples(4, 8))) != list(map(texts, rows(seed=2).samples(4, 8)))


def test_written_steps_are_read_right_or_wrong() -> None:
    assert list(written_steps("44+35=79:19,79;79+19=9!98")) == [
        (Step(44, "+", 35, 79), (19, 79), 8),
        (Step(79, "+", 19, 9), (), 22),
    ]
    # The last of the numbers left begins a step where the thought is garbled.
    assert [step for step, _, _ in written_steps("44-19=25:25,35+60=95")] == [
        Step(44, "-", 19, 25),
        Step(35, "+", 60, 95),
    ]
