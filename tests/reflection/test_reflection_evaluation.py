"""Detection scores by hand, cuts by name, and a whole evaluation against a scripted policy."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scripted import sample

from rlsys.algorithms.reflection import LabelReading
from rlsys.config import ChunkingConfig, PromptConfig
from rlsys.environments.thoughts import ThoughtSampler
from rlsys.grading.answers import extract_answer
from rlsys.grading.compare import decide
from rlsys.reflection.detector import Detection, SampledThought, chunked
from rlsys.reflection.labelling.arithmetic import result_chunks
from rlsys.reflection.labelling.evaluation import (
    boundaries,
    detection_scores,
    evaluate_detector,
    revision_cuts,
)
from rlsys.reflection.labelling.journal import Journal
from rlsys.reflection.labelling.responses import Policy, Thought, read_thoughts, sample_thoughts
from rlsys.reflection.labelling.rows import LabelledThought
from rlsys.sft.tiny_model import TINY_ENVIRONMENT, tiny_tokenizer
from rlsys.tokenization.prompts import PromptRenderer
from rlsys.tokenization.think import ThinkTokens
from rlsys.types import Completion, GenerationRequest, GradingRequest, Outcome, Problem, Verdict

TINY = tiny_tokenizer()
STEPS = ChunkingConfig(separator="(?=[;?])", most=1)
PROBLEM = Problem(id="p", text="3+8-2", answer="9")
CHAIN = "3+8=11;11-2=9"


def ids(text: str) -> np.ndarray:
    return np.array(TINY(text, add_special_tokens=False)["input_ids"], np.int32)


def labelled(text: str, row: str = "p/0", closed: bool = True) -> LabelledThought:
    thought = Thought(id=row, problem=PROBLEM, token_ids=ids(text), closed=closed)
    chunks = chunked(list(text), STEPS)
    return LabelledThought(thought, chunks, result_chunks(PROBLEM, chunks))


def detection(text: str, *probabilities: float) -> Detection:
    chunks = chunked(list(text), STEPS)
    if not probabilities:
        return Detection(chunks, Outcome.EMPTY if not text else Outcome.FAILED)
    return Detection(chunks, Outcome.READ, LabelReading(np.array(probabilities), 0, 0))


def test_scores_count_chunks_and_first_results() -> None:
    twice = f"{CHAIN}?{CHAIN}"
    scores = detection_scores(
        [
            detection(twice, 0.1, 0.9, 0.1, 0.9),  # all right
            detection(twice, 0.1, 0.4, 0.6, 0.9),  # late, and one too many
            detection(CHAIN, 0.1, 0.2),  # not found
            detection(CHAIN),  # not read
            detection(""),  # no chunks: not scored
            detection("3+8=11", 0.2),  # rightly none
        ],
        [(1, 3), (1, 3), (1,), (1,), (), ()],
    )
    assert (scores.thoughts, scores.chunks) == (5, 13)
    assert scores.accuracy == pytest.approx(9 / 13)
    assert scores.all_think == pytest.approx(7 / 13)
    assert scores.first_accuracy == pytest.approx(2 / 5)
    assert scores.first_of_answered == pytest.approx(1 / 4)
    assert scores.precision == pytest.approx(3 / 4)
    assert scores.recall == pytest.approx(3 / 6)


def test_no_thoughts_score_nothing() -> None:
    scores = detection_scores([], [])
    assert (scores.thoughts, scores.accuracy, scores.recall) == (0, 0.0, 0.0)


def test_cuts_by_name() -> None:
    twice = f"{CHAIN}?{CHAIN}"
    items = [labelled(twice), labelled(CHAIN), labelled("")]
    found = [detection(twice, 0.1, 0.9, 0.1, 0.9), detection(CHAIN), detection("")]
    cuts = revision_cuts(items, found, [0.5])
    assert list(cuts) == [
        *("original", "teacher", "normal", "weak", "strong", "first", "ratio 0.5"),
        *("as normal", "as weak", "as strong", "as first"),
    ]
    whole, one = len(twice), len(CHAIN)
    assert cuts["original"] == [whole, one, 0]
    assert cuts["teacher"] == [one, one, 0]
    assert cuts["first"] == [one, one, 0]
    assert cuts["normal"] == [whole, one, 0]  # nothing follows the last chunk
    assert cuts["as first"] == [20, 6, 0]  # of 40 tokens 26: nearest to 17.6 of 27, then to 6


def test_blind_cuts_are_at_the_ends_of_pieces() -> None:
    assert boundaries(chunked(list(CHAIN + ";"), STEPS), 14) == [6, 13, 14]
    assert boundaries(chunked([], STEPS), 0) == [0]


class Calculator:
    """A policy that answers right once the thought holds the total, and thinks one chain."""

    def __init__(self, thought: str = f"{CHAIN}</think>") -> None:
        self.thought = thought
        self.requests: list[GenerationRequest] = []

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[list[Completion]]:
        self.requests += requests
        return [[self._complete(r)] * r.n for r in requests]

    def _complete(self, request: GenerationRequest) -> Completion:
        prompt = TINY.decode(request.token_ids)
        reply = self.thought
        if "</think>" in prompt:
            reply = "9}<eos>" if "=9" in prompt or ";9" in prompt else "0}<eos>"
        return sample(request, ids(reply).tolist())


class Grader:
    async def grade(self, requests: Sequence[GradingRequest]) -> list[Verdict]:
        return [decide(extract_answer(r.response), r.gold) or Verdict.WRONG for r in requests]


def policy(generator: Calculator, thought_tokens: int = 64) -> Policy:
    return Policy(
        sampler=ThoughtSampler(
            think=ThinkTokens.resolve(TINY, TINY_ENVIRONMENT),
            decode=lambda token_ids: TINY.decode(list(token_ids), skip_special_tokens=True),
            temperature=1.0,
            generator=generator,
            grader=Grader(),
        ),
        renderer=PromptRenderer(TINY, PromptConfig()),
        thought_tokens=thought_tokens,
        answer_tokens=6,
        seed=0,
    )


def test_thoughts_leave_out_what_ends_them(tmp_path: Path) -> None:
    closed, cut, ended = (
        asyncio.run(policy(Calculator(text), 13).think_about([PROBLEM], 2))[1]
        for text in (f"{CHAIN[:5]}</think>", CHAIN + ";1", "3+8<eos>")
    )
    assert (TINY.decode(closed.token_ids), closed.closed, closed.id) == (CHAIN[:5], True, "p/1")
    assert (TINY.decode(cut.token_ids), cut.closed) == (CHAIN, False)
    assert (TINY.decode(ended.token_ids), ended.closed) == ("3+8", False)


def test_sampling_goes_on_where_it_stopped(tmp_path: Path) -> None:
    path = tmp_path / "thoughts.jsonl"
    more = Problem(id="q", text="1+1", answer="2")
    for problems in ([PROBLEM], [PROBLEM, more]):
        generator = Calculator()
        asyncio.run(sample_thoughts(policy(generator), problems, 2, Journal(path), 0.0))
        assert len(generator.requests) == 1
    thoughts = list(read_thoughts(path))
    assert [t.id for t in thoughts] == ["p/0", "p/1", "q/0", "q/1"]
    assert thoughts[0].problem == PROBLEM
    np.testing.assert_array_equal(thoughts[0].token_ids, ids(CHAIN))


def test_a_share_of_the_thoughts_is_cut(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "thoughts.jsonl")
    asyncio.run(sample_thoughts(policy(Calculator()), [PROBLEM], 200, journal, 0.25))
    thoughts = list(read_thoughts(tmp_path / "thoughts.jsonl"))
    cut = [t for t in thoughts if not t.closed]
    assert 30 < len(cut) < 70
    assert {len(t.token_ids) for t in cut} == set(range(1, len(CHAIN) + 1))
    assert {TINY.decode(t.token_ids) for t in thoughts if t.closed} == {CHAIN}


def test_answers_are_forced_where_the_thought_is_cut() -> None:
    generator = Calculator()
    thoughts = [
        labelled(CHAIN).thought,
        labelled(CHAIN).thought,
        labelled("", closed=False).thought,
    ]
    answers = asyncio.run(policy(generator).answer(thoughts, [13, 6, 0]))
    prompts = [TINY.decode(r.token_ids) for r in generator.requests]
    header = "</think>\n\n**Final Answer**\n\\boxed{"
    assert prompts == [f"<bos>3+8-2=<think>{thought}{header}" for thought in (CHAIN, "3+8=11", "")]
    assert [a.verdict for a in answers] == [Verdict.RIGHT, Verdict.WRONG, Verdict.WRONG]
    assert TINY.decode(answers[0].token_ids) == f"{header}9}}"
    assert [a.tokens for a in answers] == [13 + 6, 6 + 6, 6]
    assert len({r.seed for r in generator.requests}) == 3


class Known:
    """A detector that is told what to say."""

    def __init__(self, detections: list[Detection]) -> None:
        self.detections = detections

    async def detect(self, thoughts: Sequence[SampledThought]) -> list[Detection]:
        assert [TINY.decode(t.token_ids) for t in thoughts] == [
            d.thought.text for d in self.detections
        ]
        return self.detections


def test_revision_alone_saves_tokens_at_no_loss_if_the_cut_is_right() -> None:
    twice = f"{CHAIN}?{CHAIN}"
    items = [labelled(twice), labelled(twice, "p/1")]
    detector = Known([detection(twice, 0.1, 0.9, 0.1, 0.9)] * 2)
    generator = Calculator()
    evaluation = asyncio.run(evaluate_detector(policy(generator), detector, items, [0.2]))
    rows = {row.cut: row for row in evaluation.revisions}
    assert evaluation.detection.accuracy == 1.0
    assert evaluation.counts["read"] == 2
    assert (rows["original"].accuracy, rows["original"].tokens) == (1.0, 27 + 6)
    assert rows["first"].accuracy == 1.0
    assert rows["first"].token_ratio == pytest.approx(100 * 19 / 33)
    assert rows["first"].thought_ratio == pytest.approx(100 * 13 / 27)
    assert rows["ratio 0.2"].accuracy == 0.0
    # Equal cuts of a thought are answered once.
    assert len(generator.requests) == len({(r.seed, len(r.token_ids)) for r in generator.requests})
    revisions: Any = evaluation.to_dict()["revisions"]
    assert revisions[0]["cut"] == "original"
