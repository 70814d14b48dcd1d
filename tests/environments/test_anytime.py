"""Anytime episodes grown with a scripted generator: cuts, forced tokens, format, seeds, scores."""

import asyncio
from collections.abc import Sequence

import numpy as np

from rlsys.environments.anytime import THOUGHT, AnytimeEnvironment
from rlsys.environments.report import report_anytime
from rlsys.environments.seeds import derive_seed
from rlsys.tokenization.think import ThinkTokens
from rlsys.types import (
    Completion,
    GenerationRequest,
    GradingRequest,
    Kind,
    Problem,
    Verdict,
)

EOS, END, CLOSING, HEADER, RIGHT_TOKEN, OTHER = 1, 2, 3, 4, 5, 6
THINK = ThinkTokens(
    think_end_id=END,
    eos_ids=(EOS,),
    closing_ids=np.array([CLOSING], np.int32),
    header_ids=np.array([HEADER], np.int32),
)
PROMPT = np.array([10, 11, 12], np.int32)
PROBLEM = Problem(id="p", text="text", answer="gold")


def completion(ids: Sequence[int], *, stopped: bool, engine: int = 0) -> Completion:
    return Completion(
        token_ids=np.array(ids, np.int32),
        logprobs=-np.ones(len(ids), np.float32),
        stopped=stopped,
        versions=(3, 4),
        engine=engine,
    )


class Script:
    """Gives the scripted thoughts, then one fixed answer everywhere; records the requests."""

    def __init__(self, thoughts: list[Completion], answer: Completion) -> None:
        self._thoughts, self._answer = thoughts, answer
        self.requests: list[GenerationRequest] = []

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[list[Completion]]:
        self.requests.extend(requests)
        if len(self.requests) == 1:
            return [self._thoughts]
        return [[self._answer] * r.n for r in requests]


class RightIfItSaysSo:
    """RIGHT where the text has the token 5; records what it was asked."""

    def __init__(self) -> None:
        self.asked: list[GradingRequest] = []

    async def grade(self, requests: Sequence[GradingRequest]) -> list[Verdict]:
        self.asked.extend(requests)
        return [Verdict.RIGHT if "5" in r.response.split() else Verdict.WRONG for r in requests]


def grow(thoughts: list[Completion], answer: Completion, *, answers: int = 2):  # type: ignore[no-untyped-def]
    script, grader = Script(thoughts, answer), RightIfItSaysSo()
    environment = AnytimeEnvironment(
        budgets=(2, 4, 6),
        answers=answers,
        answer_tokens=5,
        group_size=len(thoughts),
        temperature=1.0,
        seed=7,
        think=THINK,
        decode=lambda ids: " ".join(map(str, ids)),
        generator=script,
        grader=grader,
    )
    group = asyncio.run(environment.run_group(9, PROBLEM, PROMPT))
    return group, script, grader, environment


RIGHT_ANSWER = completion([RIGHT_TOKEN, EOS], stopped=True)


def test_a_closed_thought_is_cut_at_smaller_budgets_and_shares_the_rest() -> None:
    thought = completion([20, 21, END], stopped=True, engine=1)
    group, script, _, _ = grow([thought], RIGHT_ANSWER)
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
    thought = completion([20, 21, 22, 23, 24, 25], stopped=False)
    group, _, _, _ = grow([thought], RIGHT_ANSWER)
    segment = group.episodes[0].segments[THOUGHT]
    assert segment.token_ids is thought.token_ids
    assert segment.logprobs is thought.logprobs


def test_an_unfinished_thought_is_closed_by_force_at_every_budget() -> None:
    thought = completion([20, 21, 22, 23, 24, 25], stopped=False)
    _, script, _, _ = grow([thought], RIGHT_ANSWER, answers=1)
    assert [r.token_ids[3:].tolist() for r in script.requests[1:]] == [
        [20, 21, CLOSING, END, HEADER],
        [20, 21, 22, 23, CLOSING, END, HEADER],
        [20, 21, 22, 23, 24, 25, CLOSING, END, HEADER],
    ]


def test_eos_inside_the_thought_scores_nothing_where_it_is_kept() -> None:
    thought = completion([20, 21, EOS], stopped=True)
    group, _, grader, environment = grow([thought], RIGHT_ANSWER)
    assert group.episodes[0].scores.tolist() == [1, 1, 0, 0, 0, 0]
    assert len(grader.asked) == 2
    assert not environment.is_closed(thought)


def test_a_second_end_of_thought_in_the_answer_scores_nothing() -> None:
    thought = completion([20, END], stopped=True)
    twice = completion([RIGHT_TOKEN, END, RIGHT_TOKEN, EOS], stopped=True)
    group, _, grader, _ = grow([thought], twice)
    assert group.episodes[0].scores.tolist() == [0] * 6
    assert grader.asked == []


def test_the_graded_text_is_what_was_forced_and_what_was_answered() -> None:
    _, _, grader, _ = grow([completion([20, END], stopped=True)], RIGHT_ANSWER)
    assert set(grader.asked) == {GradingRequest(f"{HEADER} {RIGHT_TOKEN} {EOS}", "gold")}


def test_seeds_depend_on_the_place_of_the_request_alone() -> None:
    thoughts = [completion([20, 21, 22, END], stopped=True)] * 2
    _, first, _, _ = grow(thoughts, RIGHT_ANSWER)
    _, second, _, _ = grow(thoughts, RIGHT_ANSWER)
    seeds = [r.seed for r in first.requests]
    assert seeds == [r.seed for r in second.requests]
    assert len(set(seeds)) == len(seeds)
    assert seeds[0] == derive_seed(7, 9, "thought")
    assert all(0 <= s < 2**62 for s in seeds if s is not None)


def test_the_report_has_the_numbers_and_a_readable_episode() -> None:
    thoughts = [
        completion([20, 21, END], stopped=True),
        completion([20, 21, 22, 23, 24, 25], stopped=False),
    ]
    group, _, _, environment = grow(thoughts, RIGHT_ANSWER)
    report = report_anytime(group, environment, (), environment.decode)
    example = report.example
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
        "text": "5 1",
        "verdict": "right",
        "score": 1.0,
    }
    assert [a["cut"] for a in example["answers"]] == [2, 2, 3, 3, 3, 3]
