"""Originals and revisions rolled out with a scripted generator and detector."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from scripted import (
    CLOSING,
    END,
    EOS,
    HEADER,
    OTHER,
    RIGHT,
    THINK,
    WAIT,
    FixedPrompt,
    RightIfItSaysSo,
    ScriptedGenerator,
    decode,
)

from rlsys.algorithms.rea import rea_samples
from rlsys.algorithms.reflection import ChunkedThought, LabelReading, Piece
from rlsys.config import ReaConfig, RunConfig
from rlsys.config.loading import load_config
from rlsys.environments.anytime import AnytimeEnvironment
from rlsys.environments.base import Role, RolloutContext
from rlsys.environments.seeds import derive_seed
from rlsys.environments.thoughts import ThoughtSampler
from rlsys.reflection.detector import Detection, SampledThought
from rlsys.reflection.environment import Reviser, RevisionEnvironment
from rlsys.tokenization.tokenizer import load_tokenizer
from rlsys.types import Group, GroupReport, Kind, Outcome, Problem

PROBLEM = Problem(id="p", text="text", answer="gold", difficulty=6.0)
CLOSED = [20, WAIT, 22, 23, WAIT, 25, END]
RUN_OUT = [20, 21, 22, 23, 24, 25, 26, 27]
BROKEN = [20, 21, EOS]
ANSWER = [RIGHT, EOS]
WRONG = [OTHER, EOS]
REVISED_TOKENS = 9
"""Limit of a revised answer, by which the script knows one."""


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


def thinker(generator: ScriptedGenerator, group_size: int, **changed: Any) -> AnytimeEnvironment:
    settings: dict[str, Any] = {
        "sampler": ThoughtSampler(
            think=THINK,
            decode=decode,
            temperature=1.0,
            generator=generator,
            grader=RightIfItSaysSo(),
        ),
        "renderer": FixedPrompt(),
        "budgets": (8,),
        "answers": 1,
        "answer_tokens": 5,
        "group_size": group_size,
        "seed": 7,
        "count_reflections": lambda ids: list(ids).count(WAIT),
    }
    return AnytimeEnvironment(**settings | changed)


def rollout(
    thoughts: list[list[int]],
    detector: CutAfter | None,
    *,
    original: Sequence[int] = ANSWER,
    revised: Sequence[int] = ANSWER,
    free: bool = False,
) -> tuple[Group, ScriptedGenerator, GroupReport]:
    script = ScriptedGenerator(
        thoughts, lambda request: revised if request.max_tokens == REVISED_TOKENS else original
    )
    reviser = None
    if detector is not None:
        reviser = Reviser(detector=detector, strength="first", answer_tokens=REVISED_TOKENS)
    environment = RevisionEnvironment(
        originals=thinker(script, len(thoughts)), reviser=reviser, free=free
    )
    group = asyncio.run(environment.rollout(9, PROBLEM))
    return group, script, environment.report(group, ())


def test_a_revision_is_a_branch_at_the_cut() -> None:
    detector = CutAfter(0)
    group, script, _ = rollout([CLOSED], detector)
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
    assert [t.reflections for t in episode.thoughts] == [2, 1]
    assert [t.tokens for t in episode.thoughts] == [6, 2]


def test_a_thought_that_ran_out_is_closed_by_force_in_both_rows() -> None:
    _, script, _ = rollout([RUN_OUT], CutAfter(2))
    assert [r.token_ids[3:].tolist() for r in script.requests[1:]] == [
        [20, 21, 22, 23, 24, 25, 26, 27, CLOSING, END, HEADER],
        [20, 21, 22, 23, 24, 25, CLOSING, END, HEADER],
    ]


def test_a_thought_that_ended_the_turn_is_wrong_but_its_beginning_can_be_answered_from() -> None:
    group, script, _ = rollout([BROKEN], CutAfter(0))
    assert script.requests[-1].token_ids[3:].tolist() == [CLOSING, END, HEADER]  # its only piece
    assert group.episodes[0].scores.tolist() == [0, 1]


def test_a_reflection_model_that_fails_leaves_the_originals_and_is_counted() -> None:
    group, script, report = rollout([CLOSED, RUN_OUT, CLOSED], CutAfter(None, 0, None))
    assert [len(e.scores) for e in group.episodes] == [1, 2, 1]
    assert len(script.requests) == 1 + 3 + 1
    assert report.numbers["reflection_model/failed"].tolist() == [1, 0, 1]
    assert report.numbers["reflection_model/read"].tolist() == [0, 1, 0]
    assert report.numbers["revision/share"].tolist() == [0, 1, 0]
    assert report.answers == 4


def test_without_a_reflection_model_there_are_originals_only() -> None:
    group, script, report = rollout([CLOSED, RUN_OUT], None)
    assert [len(e.scores) for e in group.episodes] == [1, 1]
    assert len(script.requests) == 3
    assert not [n for n in report.numbers if n.startswith(("reflection_model", "revision"))]
    assert report.scores_G.tolist() == [1, 1]


def test_free_originals_follow_their_own_end_of_thought() -> None:
    """Nothing is forced before an original's answer, and its tokens count against the budget."""
    group, script, _ = rollout([CLOSED, RUN_OUT, BROKEN], CutAfter(0, 0, None), free=True)
    _, rest, *revisions = script.requests
    assert rest.token_ids.tolist() == [10, 11, 12, *CLOSED]
    assert (rest.max_tokens, rest.engine) == (8 - len(CLOSED), 1)
    assert rest.seed == derive_seed(7, 9, "answer", 0, 0)
    assert [r.token_ids[-3:].tolist() for r in revisions] == [[CLOSING, END, HEADER]] * 2
    closed, run_out, broken = group.episodes
    assert [(s.parent, s.cut, s.kind, len(s.token_ids)) for s in closed.segments] == [
        (-1, 0, Kind.PROMPT, 3),
        (0, 3, Kind.THOUGHT, 7),
        (1, 7, Kind.ANSWER, 1),  # one token is left of the budget of eight
        (1, 2, Kind.FORCED, 3),
        (3, 3, Kind.ANSWER, 2),
    ]
    # A response that has not ended has an empty answer, and is graded as it stands.
    assert [len(s.token_ids) for s in run_out.segments] == [3, 8, 0, 3, 2]
    assert [len(s.token_ids) for s in broken.segments] == [3, 3, 0]
    assert [e.scores.tolist() for e in group.episodes] == [[1, 1], [0, 1], [0]]
    samples = rea_samples(group, ReaConfig(), revised=True)
    assert [s.num_trained for s in samples] == [2 * 2 + 5 + 1 + 2, 2 * 2 + 6 + 2, 2 * 3]


def test_settings_of_a_run_reach_training_and_evaluation() -> None:
    """Originals are free in training only, and top_p is for evaluations only."""
    words = ("environment.type=reflection", "algorithm.method=rea", "environment.originals=free")
    config = load_config(None, [*words, "evaluation.top_p=0.9"], RunConfig)
    tokenizer = load_tokenizer("tiny")

    def created(role: Role) -> Any:
        context = RolloutContext(
            config=config,
            role=role,
            tokenizer=tokenizer,
            decode=decode,
            renderer=FixedPrompt(),  # type: ignore[arg-type]
            generator=ScriptedGenerator([], lambda _: ANSWER),
            grader=RightIfItSaysSo(),
            max_length=512,
        )
        return RevisionEnvironment.create(context)

    training, evaluation = created("training"), created("evaluation")
    assert (training.free, training.originals.sampler.top_p) == (True, 1.0)
    assert isinstance(evaluation, AnytimeEnvironment)
    assert evaluation.sampler.top_p == 0.9
    assert config.environment.longest_episode == 8192


def test_a_free_original_may_be_right_before_it_ends() -> None:
    group, script, _ = rollout([[20, RIGHT, *RUN_OUT[2:]]], None, free=True)
    assert len(script.requests) == 1
    assert group.episodes[0].scores.tolist() == [1]


def test_seeds_depend_on_the_place_of_the_request_alone() -> None:
    _, first, _ = rollout([CLOSED, RUN_OUT], CutAfter(0, 0))
    _, second, _ = rollout([CLOSED, RUN_OUT], CutAfter(None, 0))
    seeds = [r.seed for r in first.requests]
    assert len(set(seeds)) == len(seeds)
    assert {r.seed for r in second.requests} < set(seeds)
    assert seeds[-1] == derive_seed(7, 9, "answer", 1, 1)


def test_the_report_of_a_training_group() -> None:
    _, _, report = rollout([CLOSED, RUN_OUT], CutAfter(0, 2), original=WRONG)
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
        "reflection_model/read": [1, 1],
        "reflection_model/empty": [0, 0],
        "reflection_model/too_long": [0, 0],
        "reflection_model/unreadable": [0, 0],
        "reflection_model/failed": [0, 0],
        "reflection_model/missing_labels": [1, 1],
        "reflection_model/extra_labels": [2, 2],
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
    revision: Any = report.example["revision"]
    assert revision["kept"] == 2


def test_a_right_original_with_a_wrong_revision_lost_something() -> None:
    _, _, report = rollout([CLOSED, RUN_OUT], CutAfter(0, None), revised=WRONG)
    assert report.numbers["truncation_accuracy"].tolist() == [0]
    assert report.numbers["accuracy/revised"].tolist() == [0]


def test_the_evaluation_answers_under_budgets_and_cuts_afterwards() -> None:
    """7 tokens of thought, a header and two of an answer are 10: they survive a cut at 12 only."""
    script = ScriptedGenerator([CLOSED, RUN_OUT], lambda _: ANSWER)
    environment = thinker(script, 2, budgets=(4, 8, 12), answers=2, evaluates=True)
    group = asyncio.run(environment.rollout(9, PROBLEM))
    report = environment.report(group, ())
    numbers = {name: values.tolist() for name, values in report.numbers.items()}
    assert [numbers[f"score/{b}"] for b in (4, 8, 12)] == [[1, 1]] * 3
    assert numbers["response/length"] == [10, 17]
    assert [numbers[f"cut/{b}"] for b in (4, 8, 12)] == [[0, 0], [0, 0], [1, 0]]
    assert numbers["accuracy/difficulty_6"] == [1, 1]
    assert numbers["thought/length/difficulty_6"] == [7, 12]
    assert numbers["reflections/per_token/difficulty_6"] == [pytest.approx(1 / 3), 0]
