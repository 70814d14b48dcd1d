"""A real vLLM engine on a GPU: log-probs that stay on the card are those that vLLM returns."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch
from gpu_engine import gpu_engine

from actors.generation import GenerationActor
from actors.sampled_logprobs import Span
from rlsys.types import Completion, GenerationRequest

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
REQUESTS, SAMPLES, PROMPT_TOKENS, SLOTS = 40, 2, 20, 16
"""More samples than slots, so that slots are used again."""


def requests(top_logprobs: int) -> list[GenerationRequest]:
    draw = np.random.default_rng(0)
    return [
        GenerationRequest(
            token_ids=draw.integers(4, 104, PROMPT_TOKENS).astype(np.int32),
            n=SAMPLES,
            max_tokens=int(draw.integers(1, 60)),
            stop_token_ids=(5,),
            temperature=0.7,
            seed=index,
            top_logprobs=top_logprobs,
        )
        for index in range(REQUESTS)
    ]


async def sample(actor: GenerationActor) -> None:
    await actor.start(serve=True)
    fetcher = actor._logprobs
    assert fetcher is not None

    # vLLM returns these log-probs, and the worker keeps the same ones.
    returned = await actor.generate(requests(top_logprobs=1))
    for number, completions in enumerate(returned):
        for index, completion in enumerate(completions):
            stop = PROMPT_TOKENS + len(completion.token_ids)
            kept = await fetcher.fetch(Span(f"{index}_{number}", PROMPT_TOKENS, stop))
            np.testing.assert_array_equal(kept, completion.logprobs)

    # And so they come with requests that ask for nothing else.
    plain = await actor.generate(requests(top_logprobs=0))
    pairs: list[tuple[Completion, Completion]] = [
        pair for a, b in zip(plain, returned, strict=True) for pair in zip(a, b, strict=True)
    ]
    equal = [(a, b) for a, b in pairs if np.array_equal(a.token_ids, b.token_ids)]
    # Cached prefixes and other batches round otherwise, which now and then changes a sample.
    assert len(equal) > 0.8 * len(pairs)
    assert np.mean([np.abs(a.logprobs - b.logprobs).mean() for a, b in equal]) < 0.02
    await actor.close()


def test_kept_log_probs_are_those_of_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    actor = gpu_engine(monkeypatch, max_sequences=SLOTS, enforce_eager=True)
    asyncio.run(sample(actor))
