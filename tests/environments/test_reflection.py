"""Originals and revisions grown with a scripted generator and detector."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from rlsys.algorithms.reflection import ChunkedThought, LabelReading, Piece
from rlsys.environments.anytime import AnytimeEnvironment
from rlsys.environments.reflection import ReflectionEnvironment, Revising
from rlsys.environments.report import GroupReport
from rlsys.environments.report_reflection import report_reflections, report_thoughts
from rlsys.environments.seeds import derive_seed
from rlsys.reflection.detector import Detection, Outcome, SampledThought
from rlsys.tokenization.think import ThinkTokens
from rlsys.types import (
    Completion,
    GenerationRequest,
    GradingRequest,
    Group,
    Kind,
    Problem,
    Verdict,
)

EOS, END, CLOSING, HEADER, RIGHT, OTHER, WAIT = 1, 2, 3, 4, 5, 6, 7
THINK = ThinkTokens(
    think_end_id=END,
    eos_ids=(EOS,),
    closing_ids=np.array([CLOSING], np.int32),
    header_ids=np.array([HEADER], np.int32),
)
PROMPT = np.array([10, 11, 12], np.int32)
PROBLEM = Problem(id="p", text="text", answer="gold", difficulty=6.0)


def completion(
    ids: Sequence[int], *, stopped: bool, engine: int = 0, cached: int = 0
) -> Completion:
    return Completion(
        token_ids=np.array(ids, np.int32),
        logprobs=-np.ones(len(ids), np.float32),
        stopped=stopped,
        versions=(3, 4),
        engine=engine,
        cached_tokens=cached,
        cache_block=2,
    )


CLOSED = completion([20, WAIT, 22, 23, WAIT, 25, END], stopped=True, engine=1)
RUN_OUT = completion([20, 21, 22, 23, 24, 25, 26, 27], stopped=False)
BROKEN = completion([20, 21, EOS], stopped=True)
ANSWER = completion([RIGHT, EOS], stopped=True, cached=4)
WRONG = completion([OTHER, EOS], stopped=True)


class Script:
    """Gives the scripted thoughts, then the answer that the closing before it asks for."""

    def __init__(self, thoughts: list[Completion], original: Completion, revised: Completion):
        self._thoughts, self._original, self._revised = thoughts, original, revised
        self.requests: list[GenerationRequest] = []

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[list[Completion]]:
        self.requests.extend(requests)
        if len(self.requests) == 1:
            return [self._thoughts]
        return [[self._answer(r)] * r.n for r in requests]

    def _answer(self, request: GenerationRequest) -> Completion:
        return self._revised if request.max_tokens == 9 else self._original


class CutAfter:
    """Reads every thought as pieces of two tokens and is sure of the one given; None fails."""

    def __init__(self, *chunks: int | None) -> None:
        self._chunks = chunks
        self.seen: list[SampledThought] = []

    async def detect(self, thoughts: Sequence[SampledThought]) -> list[Detection]:
        self.seen.extend(thoughts)
        return [self._read(t, c) for t, c in zip(thoughts, self._chunks, strict=True)]

    def _read(self, thought: SampledThought, sure: int | None) -> Detection:
        count = len(thought.token_ids) // 2
        pieces = tuple(Piece(2 * i, 2 * i + 2, 2, 2 * i + 2) for i in range(count))
        chunked = ChunkedThought("", pieces, tuple((i,) for i in range(count)))
        if sure is None:
            return Detection(chunked, Outcome.FAILED)
        return Detection(chunked, Outcome.READ, LabelReading(np.eye(count)[sure], 1, 2))


class RightIfItSaysSo:
    """RIGHT where the text has the token 5."""

    async def grade(self, requests: Sequence[GradingRequest]) -> list[Verdict]:
        return [Verdict.RIGHT if "5" in r.response.split() else Verdict.WRONG for r in requests]


def decode(ids: Sequence[int]) -> str:
    return " ".join(map(str, ids))


def thinker(script: Script, group_size: int, **changed: Any) -> AnytimeEnvironment:
    settings: dict[str, Any] = {
        "budgets": (8,),
        "answers": 1,
        "answer_tokens": 5,
        "group_size": group_size,
        "temperature": 1.0,
        "seed": 7,
        "think": THINK,
        "decode": decode,
        "generator": script,
        "grader": RightIfItSaysSo(),
        "count_reflections": lambda ids: list(ids).count(WAIT),
    }
    return AnytimeEnvironment(**settings | changed)


def grow(
    thoughts: list[Completion],
    detector: CutAfter | None,
    *,
    original: Completion = ANSWER,
    revised: Completion = ANSWER,
) -> tuple[Group, Script, GroupReport]:
    script = Script(thoughts, original, revised)
    originals = thinker(script, len(thoughts))
    revising = detector and Revising(detector=detector, strength="first", answer_tokens=9)
    environment = ReflectionEnvironment(originals=originals, revising=revising)
    group = asyncio.run(environment.run_group(9, PROBLEM, PROMPT))
    return group, script, report_reflections(group, originals, (), decode)


def test_a_revision_is_a_branch_at_the_cut() -> None:
    detector = CutAfter(0)
    group, script, _ = grow([CLOSED], detector)
    assert [t.token_ids.tolist() for t in detector.seen] == [[20, WAIT, 22, 23, WAIT, 25]]
    assert detector.seen[0].problem == "text"
    _, original, revision = script.requests
    assert original.token_ids.tolist() == [10, 11, 12, 20, WAIT, 22, 23, WAIT, 25, END, HEADER]
    assert revision.token_ids.tolist() == [10, 11, 12, 20, WAIT, CLOSING, END, HEADER]
    assert (original.max_tokens, revision.max_tokens) == (5, 9)
    assert original.engine == revision.engine == 1  # which holds the thought in its cache
    (episode,) = group.episodes
    assert [(s.parent, s.cut, s.kind, len(s.token_ids)) for s in episode.segments] == [
        (-1, 0, Kind.PROMPT, 3),
        (0, 3, Kind.THOUGHT, 7),
        (1, 7, Kind.FORCED, 1),
        (2, 1, Kind.ANSWER, 2),
        (1, 2, Kind.FORCED, 3),
        (4, 3, Kind.ANSWER, 2),
    ]
    assert episode.answer_segments.tolist() == [3, 5]
    assert episode.scores.tolist() == [1, 1]
    assert [f["reflections"] for f in episode.facts] == [2, 1]
    assert [f["thought_tokens"] for f in episode.facts] == [6, 2]


def test_a_thought_that_ran_out_is_closed_by_force_in_both_rows() -> None:
    _, script, _ = grow([RUN_OUT], CutAfter(2))
    assert [r.token_ids[3:].tolist() for r in script.requests[1:]] == [
        [20, 21, 22, 23, 24, 25, 26, 27, CLOSING, END, HEADER],
        [20, 21, 22, 23, 24, 25, CLOSING, END, HEADER],
    ]


def test_a_thought_that_ended_the_turn_is_wrong_but_its_beginning_can_be_answered_from() -> None:
    group, script, _ = grow([BROKEN], CutAfter(0))
    assert script.requests[-1].token_ids[3:].tolist() == [CLOSING, END, HEADER]  # its only piece
    assert group.episodes[0].scores.tolist() == [0, 1]


def test_a_reader_that_fails_leaves_the_originals_and_is_counted() -> None:
    group, script, report = grow([CLOSED, RUN_OUT, CLOSED], CutAfter(None, 0, None))
    assert [len(e.scores) for e in group.episodes] == [1, 2, 1]
    assert len(script.requests) == 1 + 3 + 1
    assert report.numbers["reader/failed"].tolist() == [1, 0, 1]
    assert report.numbers["reader/read"].tolist() == [0, 1, 0]
    assert report.numbers["revision/share"].tolist() == [0, 1, 0]
    assert report.answers == 4


def test_with_no_reader_at_all_there_are_originals_only() -> None:
    group, script, report = grow([CLOSED, RUN_OUT], None)
    assert [len(e.scores) for e in group.episodes] == [1, 1]
    assert len(script.requests) == 3
    assert not [n for n in report.numbers if n.startswith(("reader", "revision"))]
    assert report.scores_G.tolist() == [1, 1]


def test_seeds_depend_on_the_place_of_the_request_alone() -> None:
    _, first, _ = grow([CLOSED, RUN_OUT], CutAfter(0, 0))
    _, second, _ = grow([CLOSED, RUN_OUT], CutAfter(None, 0))
    seeds = [r.seed for r in first.requests]
    assert len(set(seeds)) == len(seeds)
    assert {r.seed for r in second.requests} < set(seeds)
    assert seeds[-1] == derive_seed(7, 9, "answer", 1, 1)


def test_the_report_of_a_training_group() -> None:
    _, _, report = grow([CLOSED, RUN_OUT], CutAfter(0, 2), original=WRONG)
    numbers = {
        name: values.tolist() for name, values in report.numbers.items() if not name.endswith("_s")
    }
    assert numbers.pop("revision/time_share")[0] <= 1
    assert numbers == {
        "accuracy/original": [0, 0],
        "accuracy/revised": [1, 1],
        "truncation_accuracy": [1, 1],
        "thought/length": [7, 8],
        "thought/closed": [1, 0],
        "response/length": [7 + 1 + 2, 8 + 3 + 2],
        "reflections/per_token": [pytest.approx(1 / 3), 0],
        "reader/read": [1, 1],
        "reader/empty": [0, 0],
        "reader/too_long": [0, 0],
        "reader/unreadable": [0, 0],
        "reader/failed": [0, 0],
        "reader/missing_labels": [1, 1],
        "reader/extra_labels": [2, 2],
        "revision/share": [1, 1],
        "revision/thought/length": [2, 6],
        "revision/kept": [pytest.approx(1 / 3), 0.75],
        "revision/response/length": [2 + 3 + 2, 6 + 3 + 2],
        # 3 + 2 and 3 + 6 tokens are 2 and 4 whole blocks of two; 4 tokens were in the cache.
        "prefix_cache/revisions": [1, 0.5],
    }
    assert {"revision/extra_s", "revision/detection_s"} <= report.numbers.keys()
    assert report.example["original"] == {
        "kept": 6,
        "text": "6 1",
        "verdict": "wrong",
        "reflections": 2,
    }
    assert report.example["revision"]["kept"] == 2


def test_a_right_original_with_a_wrong_revision_lost_something() -> None:
    _, _, report = grow([CLOSED, RUN_OUT], CutAfter(0, None), revised=WRONG)
    assert report.numbers["truncation_accuracy"].tolist() == [0]
    assert report.numbers["accuracy/revised"].tolist() == [0]


def test_the_evaluation_answers_under_budgets_and_cuts_afterwards() -> None:
    """7 tokens of thought, a header and two of an answer are 10: they survive a cut at 12 only."""
    script = Script([CLOSED, RUN_OUT], ANSWER, ANSWER)
    environment = thinker(script, 2, budgets=(4, 8, 12), answers=2)
    group = asyncio.run(environment.run_group(9, PROBLEM, PROMPT))
    report = report_thoughts(group, environment, (), decode)
    numbers = {name: values.tolist() for name, values in report.numbers.items()}
    assert [numbers[f"score/{b}"] for b in (4, 8, 12)] == [[1, 1]] * 3
    assert numbers["response/length"] == [10, 13]
    assert [numbers[f"cut/{b}"] for b in (4, 8, 12)] == [[0, 0], [0, 0], [1, 0]]
    assert numbers["accuracy/difficulty_6"] == [1, 1]
    assert numbers["thought/length/difficulty_6"] == [7, 8]
    assert numbers["reflections/per_token/difficulty_6"] == [pytest.approx(1 / 3), 0]
