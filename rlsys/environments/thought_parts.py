"""Thoughts sampled part by part, so that the answers at a budget need not wait for what follows.

    one request         thought ─────────────────────────────────┐ all answers
    part by part        part ┬ part ───────┬ part ───────────────┐ answers at the last cut
                             └ answers     └ answers

A part begins with the tokens before it, which the prefix cache of the engine holds. It has a seed
of its own, so a thought sampled in parts is another sample of the same distribution.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from rlsys.environments.seeds import derive_seed
from rlsys.environments.thoughts import ThoughtRequest, ThoughtSampler
from rlsys.types import Completion

PART_TOKENS: Final = 512
"""Fewest tokens of a part. A part costs a call of the engine and the tokens of an incomplete cache
block; shorter ones would cost more than the answers gain."""


def part_ends(budgets: Sequence[int]) -> tuple[int, ...]:
    """Return the budgets at which a thought is interrupted; the last is the largest budget.

    Example: part_ends((100, 600, 1000, 2000)) == (600, 2000)
    """
    ends = [0]
    for budget in budgets[:-1]:
        if min(budget - ends[-1], budgets[-1] - budget) >= PART_TOKENS:
            ends.append(budget)
    return (*ends[1:], budgets[-1])


async def sample_in_parts(
    sampler: ThoughtSampler, request: ThoughtRequest, ends: Sequence[int]
) -> AsyncIterator[Completion]:
    """Yield the thought at each of `ends` that it reaches, and at last the whole thought.

    Args:
        sampler: its end of thought must be one token: text over several could be cut in the middle.
        request: for one thought; its seed is that of the first part.
        ends: where to interrupt, increasing; the last is request.max_tokens.
    """
    thought = await _sample(sampler, request._replace(max_tokens=ends[0]))
    yield thought
    for part, end in enumerate(ends[1:], start=1):
        if thought.stopped:
            return
        rest = request._replace(
            prompt=np.concatenate([request.prompt, thought.token_ids]).astype(np.int32),
            max_tokens=end - len(thought.token_ids),
            # Some engines draw the n-th token of a request with the n-th random number of its seed,
            # so with one seed the parts would not be independent.
            seed=derive_seed(request.seed, "part", part),
            engine=thought.engine,
        )
        thought = _joined(thought, await _sample(sampler, rest))
        yield thought


async def _sample(sampler: ThoughtSampler, request: ThoughtRequest) -> Completion:
    ((thought,),) = await sampler.sample_thoughts([request])
    return thought


def _joined(begin: Completion, rest: Completion) -> Completion:
    """Return one completion of both; the prefix cache is counted where the thought began."""
    return replace(
        rest,
        token_ids=np.concatenate([begin.token_ids, rest.token_ids]),
        logprobs=np.concatenate([begin.logprobs, rest.logprobs]),
        versions=(begin.versions[0], rest.versions[1]),
        cached_tokens=begin.cached_tokens,
    )
