"""What is sampled, under which seeds, and what a restart leaves out; an endpoint as the engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from raw_server import Answer, raw_server
from scripted import EOS, RIGHT, sample, thinker

from rlsys.config import GradingConfig
from rlsys.config.evaluation_sets import EvaluatedEndpoint
from rlsys.environments.anytime import AnytimeEnvironment
from rlsys.errors import ConfigError, EngineError, ResourceError
from rlsys.evaluation.endpoint import EndpointGenerator, endpoint_generator
from rlsys.evaluation.grader import local_grader
from rlsys.evaluation.records import RESULTS, SampleResult, read_results
from rlsys.evaluation.sampling import Unit, check_unchanged, sample_unit, sample_units
from rlsys.reflection.labelling.journal import Journal
from rlsys.types import Completion, GenerationRequest, GradingRequest, Problem, Verdict

PROBLEM = Problem(id="p", text="text", answer="gold")
UNITS = [Unit("set", PROBLEM, k) for k in range(3)]


class Endless:
    """Thinks without end, and answers right; records the seeds of thoughts."""

    def __init__(self, fail_after: int | None = None) -> None:
        self.seeds: list[int | None] = []
        self._fail_after = fail_after

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[list[Completion]]:
        if len(requests[0].token_ids) == 3:  # the prompt alone
            if len(self.seeds) == self._fail_after:
                raise EngineError("gone")
            self.seeds += [request.seed for request in requests]
            return [[sample(request, [])] for request in requests]
        return [[sample(request, [RIGHT, EOS])] * request.n for request in requests]


def environment(generator: Any, grader: Any = None) -> AnytimeEnvironment:
    return replace(thinker(generator, 1, grader), budgets=(2, 4), answers=1)


def test_a_row_holds_every_budget() -> None:
    row = asyncio.run(sample_unit(environment(Endless()), UNITS[2], "w"))
    assert (row.id, row.set, row.problem, row.sample) == ("set/p/2", "set", "p", 2)
    assert (row.thought_tokens, row.closed) == (4, False)
    assert [(a.budget, a.cut, a.score, a.tokens, a.forced) for a in row.answers] == [
        (2, 2, 1.0, 2, True),
        (4, 4, 1.0, 2, True),
    ]


def sample_all(path: Path, generator: Endless) -> list[SampleResult]:
    journal = Journal(path / RESULTS)
    work = sample_units(
        environment(generator), UNITS, journal, weights="w", concurrency=1, tell=lambda line: None
    )
    asyncio.run(work)
    return sorted(read_results(path), key=lambda row: row.id)


def test_a_restart_samples_what_is_missing_with_the_same_seeds(tmp_path: Path) -> None:
    whole = Endless()
    expected = sample_all(tmp_path / "whole", whole)
    assert len(set(whole.seeds)) == 3
    with pytest.raises(ExceptionGroup):
        sample_all(tmp_path / "killed", Endless(fail_after=2))
    with (tmp_path / "killed" / RESULTS).open("ab") as file:
        file.write(b'{"id": "set/p/2", "sco')
    rest = Endless()
    assert sample_all(tmp_path / "killed", rest) == expected
    assert rest.seeds == whole.seeds[2:]


def test_results_of_a_changed_problem_or_model_are_refused(tmp_path: Path) -> None:
    done = sample_all(tmp_path, Endless())
    check_unchanged(done, UNITS, "w", tmp_path)
    check_unchanged(done, [], "w", tmp_path)  # a set that is not asked for
    changed = Unit("set", Problem(id="p", text="text", answer="other"), 0)
    with pytest.raises(ConfigError, match=r"'p' of data\.sets\.set"):
        check_unchanged(done, [changed], "w", tmp_path)
    with pytest.raises(ConfigError, match="other weights"):
        check_unchanged(done, UNITS, "x", tmp_path)


def test_hard_comparisons_need_no_actor() -> None:
    grader = local_grader(GradingConfig())
    texts = [r"\boxed{(x+1)^2}", r"\boxed{\sqrt{12}}", r"\boxed{2}", "2"]
    golds = ["x^2+2x+1", r"3\sqrt{2}", "2", "2"]
    requests = [GradingRequest(*pair) for pair in zip(texts, golds, strict=True)]
    verdicts = asyncio.run(grader.grade(requests))
    assert verdicts == [Verdict.RIGHT, Verdict.WRONG, Verdict.RIGHT, Verdict.WRONG]


REQUEST = GenerationRequest(
    token_ids=np.array([5, 6], np.int32),
    n=1,
    max_tokens=3,
    stop_token_ids=(2,),
    temperature=0.5,
    top_p=0.9,
    top_k=20,
    seed=11,
)


def served(url: str, **settings: Any) -> EvaluatedEndpoint:
    return EvaluatedEndpoint(base_url=url, model="m", retries=0, **settings)


def complete(answer: Answer) -> tuple[list[list[Completion]], list[dict[str, Any]]]:
    asked: list[dict[str, Any]] = []

    def reply(body: dict[str, Any]) -> Answer:
        asked.append(body)
        return answer

    async def one(url: str) -> list[list[Completion]]:
        async with endpoint_generator(served(url), [5]) as generator:
            assert isinstance(generator, EndpointGenerator)
            return await generator.generate([REQUEST])

    with raw_server(reply) as url:
        return asyncio.run(one(url)), asked


def test_an_endpoint_takes_and_returns_token_ids() -> None:
    choice = {"index": 0, "text": "x", "finish_reason": "stop", "token_ids": [9, 2]}
    ((completion,),), asked = complete(Answer(json.dumps({"choices": [choice]})))
    assert (completion.token_ids.tolist(), completion.stopped) == ([9, 2], True)
    check, request = asked
    assert (check["prompt"], check["max_tokens"]) == ([5], 1)
    stated = {
        "prompt": [5, 6],
        "n": 1,
        "max_tokens": 3,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 20,
        "seed": 11,
        "stop_token_ids": [2],
        "return_token_ids": True,
    }
    assert request.items() >= stated.items()


def test_an_endpoint_that_cannot_cut_thoughts_is_refused_before_anything_is_sampled() -> None:
    text_only = json.dumps({"choices": [{"index": 0, "text": "x", "finish_reason": "stop"}]})
    cases = [
        (Answer(text_only), "without token_ids"),
        (Answer('{"choices": []}'), "without token_ids"),
        (Answer("{}"), "without token_ids"),
        (Answer('{"detail": "Not Found"}', status=404), "refuses completions of token ids"),
        (Answer("<html>"), "vllm serve"),
    ]
    for answer, reason in cases:
        with pytest.raises(ResourceError, match=reason):
            complete(answer)
    with raw_server(lambda body: Answer("{}")) as url:
        pass  # nothing listens at this address any more

    async def unreachable() -> None:
        async with endpoint_generator(served(url), [5]):
            pass

    with pytest.raises(ResourceError, match="cannot be reached"):
        asyncio.run(unreachable())
