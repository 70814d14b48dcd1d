"""Anytime episodes rolled out with a scripted generator: cuts, forced tokens, seeds, scores."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import pytest
from scripted import (
    CLOSING,
    END,
    EOS,
    HEADER,
    RIGHT,
    RightIfItSaysSo,
    ScriptedGenerator,
    thinker,
)

from rlsys.algorithms.tree_samples import THOUGHT
from rlsys.environments.anytime import AnytimeEnvironment
from rlsys.environments.seeds import derive_seed
from rlsys.types import (
    Completion,
    GenerationRequest,
    GradingRequest,
    Group,
    Kind,
    Problem,
    Verdict,
)

PROBLEM = Problem(id="p", text="text", answer="gold")
CLOSED = [20, 21, END]
ENDLESS = [20, 21, 22, 23, 24, 25]


def rollout(
    thoughts: Sequence[Sequence[int]],
    answer: Sequence[int],
    *,
    answers: int = 2,
    grader: RightIfItSaysSo | None = None,
    budgets: tuple[int, ...] = (2, 4, 6),
    truncation: Literal["close", "zero", "mask"] = "close",
) -> tuple[Group, ScriptedGenerator, RightIfItSaysSo, AnytimeEnvironment]:
    generator = ScriptedGenerator(thoughts, lambda _: answer)
    grader = grader or RightIfItSaysSo()
    environment = replace(
        thinker(generator, len(thoughts), grader),
        budgets=budgets,
        answers=answers,
        truncation=truncation,
    )
    group = asyncio.run(environment.rollout(9, PROBLEM))
    return group, generator, grader, environment


RIGHT_ANSWER = [RIGHT, EOS]


def test_a_closed_thought_is_cut_at_smaller_budgets_and_shares_the_rest() -> None:
    group, script, _, _ = rollout([CLOSED], RIGHT_ANSWER)
    cut, whole = script.requests[1:]
    assert cut.token_ids.tolist() == [10, 11, 12, 20, 21, CLOSING, END, HEADER]
    assert whole.token_ids.tolist() == [10, 11, 12, 20, 21, END, HEADER]
    assert (cut.n, whole.n) == (2, 4)
    assert cut.engine == whole.engine == 1
    assert cut.max_tokens == 5
    (episode,) = group.episodes
    assert [(s.parent, s.cut, s.kind) for s in episode.segments] == [
        (-1, 0, Kind.PROMPT),
        (0, 3, Kind.THOUGHT),
        (1, 2, Kind.FORCED),
        (2, 3, Kind.ANSWER),
        (2, 3, Kind.ANSWER),
        (1, 3, Kind.FORCED),
        (5, 1, Kind.ANSWER),
        (5, 1, Kind.ANSWER),
        (5, 1, Kind.ANSWER),
        (5, 1, Kind.ANSWER),
    ]
    assert episode.answer_segments.tolist() == [3, 4, 6, 7, 8, 9]
    assert episode.splits.tolist() == [0, 0, 1, 1, 1, 1]
    assert episode.scores.tolist() == [1, 1, 1, 1, 1, 1]
    assert group.versions == (3, 4)


def test_sampled_ids_and_logprobs_are_the_engines_own() -> None:
    group, script, _, _ = rollout([ENDLESS], RIGHT_ANSWER)
    (thought,), segment = script.thoughts, group.episodes[0].segments[THOUGHT]
    assert segment.token_ids is thought.token_ids
    assert segment.logprobs is thought.logprobs


def test_an_unfinished_thought_is_closed_by_force_at_every_budget() -> None:
    _, script, _, _ = rollout([ENDLESS], RIGHT_ANSWER, answers=1)
    assert [r.token_ids[3:].tolist() for r in script.requests[1:]] == [
        [20, 21, CLOSING, END, HEADER],
        [20, 21, 22, 23, CLOSING, END, HEADER],
        [20, 21, 22, 23, 24, 25, CLOSING, END, HEADER],
    ]


def test_eos_inside_the_thought_scores_nothing_where_it_is_kept() -> None:
    group, script, grader, environment = rollout([[20, 21, EOS]], RIGHT_ANSWER)
    assert group.episodes[0].scores.tolist() == [1, 1, 0, 0, 0, 0]
    assert len(grader.asked) == 2
    assert not environment.sampler.is_closed(script.thoughts[0])


def test_an_answer_that_cannot_be_graded_scores_nothing_and_is_told_apart() -> None:
    class Lost(RightIfItSaysSo):
        async def grade(self, requests: Sequence[GradingRequest]) -> list[Verdict]:
            right, *others = await super().grade(requests)
            return [right, *(Verdict.INVALID for _ in others)]

    group, *_ = rollout([CLOSED], RIGHT_ANSWER, grader=Lost())
    (episode,) = group.episodes
    assert episode.scores.tolist() == [1, 0, 0, 0, 0, 0]
    assert episode.verdicts.tolist() == [Verdict.RIGHT, *[Verdict.INVALID] * 5]


def test_a_second_end_of_thought_in_the_answer_scores_nothing() -> None:
    group, _, grader, _ = rollout([[20, END]], [RIGHT, END, RIGHT, EOS])
    assert group.episodes[0].scores.tolist() == [0] * 6
    assert grader.asked == []


def test_the_graded_text_is_what_was_forced_and_what_was_answered() -> None:
    _, _, grader, _ = rollout([[20, END]], RIGHT_ANSWER)
    assert set(grader.asked) == {GradingRequest(f"{HEADER} {RIGHT} {EOS}", "gold")}


def test_seeds_depend_on_the_place_of_the_request_alone() -> None:
    thoughts = [[20, 21, 22, END]] * 2
    _, first, _, _ = rollout(thoughts, RIGHT_ANSWER)
    _, second, _, _ = rollout(thoughts, RIGHT_ANSWER)
    seeds = [r.seed for r in first.requests]
    assert seeds == [r.seed for r in second.requests]
    assert len(set(seeds)) == len(seeds)
    assert seeds[0] == derive_seed(7, 9, "thought")
    assert all(0 <= s < 2**62 for s in seeds if s is not None)


def test_thoughts_have_the_seeds_of_one_request_and_one_engine() -> None:
    _, script, _, _ = rollout([CLOSED, ENDLESS], RIGHT_ANSWER)
    seed = derive_seed(7, 9, "thought")
    thoughts = [r for r in script.requests if r.affinity is not None]
    assert [(r.seed, r.n, r.affinity) for r in thoughts] == [(seed, 1, seed), (seed + 1, 1, seed)]


def test_answers_wait_for_their_own_thought_only() -> None:
    """The second thought goes on until the answers of the first one are requested."""

    class Slow(ScriptedGenerator):
        answered = asyncio.Event()

        async def generate(self, requests: Sequence[GenerationRequest]) -> list[list[Completion]]:
            if requests[0].affinity is None:
                self.answered.set()
            elif requests[0].seed == derive_seed(7, 9, "thought") + 1:
                await self.answered.wait()
            return await super().generate(requests)

    generator = Slow([CLOSED, ENDLESS], lambda _: RIGHT_ANSWER)
    rolling = thinker(generator, 2).rollout(9, PROBLEM)
    group = asyncio.run(asyncio.wait_for(rolling, 60))
    assert [len(e.segments[THOUGHT].token_ids) for e in group.episodes] == [3, 6]
    assert [e.scores.sum() for e in group.episodes] == [6, 6]


def test_the_report_has_the_numbers_and_a_readable_episode() -> None:
    thoughts = [CLOSED, ENDLESS]
    group, _, _, environment = rollout(thoughts, RIGHT_ANSWER)
    report = environment.report(group, ())
    example: Any = report.example
    assert report.scores_G.tolist() == [1, 1]
    assert {name: values.tolist() for name, values in report.numbers.items()} == {
        **{f"score/{budget}": [1, 1] for budget in environment.budgets},
        "thought/length": [3, 6],
        "thought/closed": [1, 0],
    }
    assert report.answers == 12
    assert report.sampled_tokens == 9 + 12 * 2
    assert example["thought"] == "20 21 2"
    assert example["answers"][0] == {
        "budget": 2,
        "cut": 2,
        "cut_characters": 5,
        "text": "5 1",
        "tokens": 2,
        "verdict": "right",
        "score": 1.0,
    }
    assert [a["cut"] for a in example["answers"]] == [2, 2, 3, 3, 3, 3]


@pytest.mark.parametrize("truncation", ["zero", "mask"])
def test_an_unfinished_thought_may_go_without_answers(truncation: Literal["zero", "mask"]) -> None:
    group, script, grader, environment = rollout(
        [CLOSED, ENDLESS], RIGHT_ANSWER, budgets=(6,), truncation=truncation
    )
    asked = sorted(r.token_ids[3:].tolist() for r in script.requests)
    assert asked == [[], [], [20, 21, END, HEADER]]
    assert len(grader.asked) == 2
    whole, unfinished = group.episodes
    assert (whole.scores.tolist(), whole.masked) == ([1, 1], False)
    assert [s.kind for s in unfinished.segments] == [Kind.PROMPT, Kind.THOUGHT]
    assert unfinished.scores.tolist() == [0, 0]
    assert unfinished.answer_segments.tolist() == [THOUGHT, THOUGHT]
    assert unfinished.masked == (truncation == "mask")
    assert environment.report(group, ()).scores_G.tolist() == [1, 0]


def test_a_group_of_unfinished_thoughts_has_no_answers() -> None:
    group, script, grader, _ = rollout([ENDLESS] * 2, [], budgets=(6,), truncation="zero")
    assert (len(script.requests), grader.asked) == (2, [])
    assert [e.scores.tolist() for e in group.episodes] == [[0, 0], [0, 0]]
