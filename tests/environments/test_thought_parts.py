"""Thoughts sampled in parts: the same tree, answers that do not wait, seeds, failures."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from scripted import CLOSING, END, EOS, HEADER, PROMPT, RIGHT, sample, thinker

from rlsys.algorithms.tree_samples import THOUGHT
from rlsys.environments.thought_parts import part_ends
from rlsys.types import Completion, GenerationRequest, Group, Problem

PROBLEM = Problem(id="p", text="text", answer="gold")
ENDLESS, CLOSED = [20, 21, 22, 23, 24, 25], [20, 21, 22, END]


@pytest.mark.parametrize(
    ("budgets", "ends"),
    [
        ((16, 32, 48, 64), (64,)),
        ((1000,), (1000,)),
        ((2000, 4000, 6000, 8000), (2000, 4000, 6000, 8000)),
        ((100, 600, 1000, 2000), (600, 2000)),
        ((512, 1023), (1023,)),
        ((512, 1024), (512, 1024)),
    ],
)
def test_parts_are_not_too_short(budgets: tuple[int, ...], ends: tuple[int, ...]) -> None:
    assert part_ends(budgets) == ends


class OneThought:
    """Writes one thought, whatever part of it is asked for; answers are RIGHT."""

    def __init__(self, thought: Sequence[int]) -> None:
        self.thought = thought
        self.parts: list[GenerationRequest] = []
        self.answers: list[GenerationRequest] = []

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[list[Completion]]:
        return [await self.one(request) for request in requests]

    async def one(self, request: GenerationRequest) -> list[Completion]:
        if request.token_ids[-1] == HEADER:
            self.answers.append(request)
            return [sample(request, [RIGHT, EOS], engine=3)] * request.n
        self.parts.append(request)
        begin = len(request.token_ids) - len(PROMPT)
        part = sample(request, self.thought[begin:], engine=3, cached=begin)
        return [replace(part, versions=(len(self.parts), len(self.parts) + 1))]


def rollout(generator: OneThought, part_ends: tuple[int, ...]) -> Group:
    environment = replace(thinker(generator, 1), part_ends=part_ends)
    return asyncio.run(asyncio.wait_for(environment.rollout(9, PROBLEM), 60))


@pytest.mark.parametrize("thought", [ENDLESS, CLOSED, [20, END], [20, 21, 22, EOS]])
@pytest.mark.parametrize("ends", [(2, 4, 6), (4, 6)])
def test_the_tree_is_that_of_one_request(thought: list[int], ends: tuple[int, ...]) -> None:
    """Every segment, score and seed of an answer; only the versions tell the parts."""
    whole, parts = OneThought(thought), OneThought(thought)
    (expected,), (found,) = rollout(whole, ()).episodes, rollout(parts, ends).episodes
    for one, other in zip(expected.segments, found.segments, strict=True):
        np.testing.assert_array_equal(one.token_ids, other.token_ids)
        assert (one.parent, one.cut, one.kind) == (other.parent, other.cut, other.kind)
    assert found.scores.tolist() == expected.scores.tolist()
    assert found.splits.tolist() == expected.splits.tolist()
    assert [(r.seed, r.n, r.engine) for r in parts.answers] == [
        (r.seed, r.n, r.engine) for r in whole.answers
    ]
    assert len(whole.parts) == 1


def test_a_part_goes_on_from_the_sampled_ids_on_the_same_engine() -> None:
    generator = OneThought(ENDLESS)
    (episode,) = rollout(generator, (2, 4, 6)).episodes
    assert [r.token_ids[len(PROMPT) :].tolist() for r in generator.parts] == [
        [],
        [20, 21],
        [20, 21, 22, 23],
    ]
    assert [r.max_tokens for r in generator.parts] == [2, 2, 2]
    assert [r.engine for r in generator.parts] == [None, 3, 3]
    assert len({r.seed for r in generator.parts}) == 3
    thought = episode.segments[THOUGHT]
    assert thought.versions == (1, 4)
    assert thought.logprobs is not None
    assert len(thought.logprobs) == 6


def test_answers_at_a_budget_do_not_wait_for_the_rest_of_the_thought() -> None:
    class Waits(OneThought):
        asked = asyncio.Event()

        async def one(self, request: GenerationRequest) -> list[Completion]:
            if CLOSING in request.token_ids:
                self.asked.set()
            elif len(request.token_ids) > len(PROMPT):
                await self.asked.wait()
            return await super().one(request)

    generator = Waits(ENDLESS)
    rollout(generator, (2, 6))
    cuts = [len(r.token_ids) - len(PROMPT) - len([CLOSING, END, HEADER]) for r in generator.answers]
    assert cuts == [2, 4, 6]


def test_a_part_that_fails_fails_the_rollout() -> None:
    class Fails(OneThought):
        async def one(self, request: GenerationRequest) -> list[Completion]:
            if len(self.parts) == 1 and HEADER not in request.token_ids:
                raise ConnectionError("lost")
            return await super().one(request)

    with pytest.raises(ConnectionError, match="lost"):
        rollout(Fails(ENDLESS), (2, 6))
