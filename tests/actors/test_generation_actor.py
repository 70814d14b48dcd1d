"""A real vLLM engine against transformers: what it samples, and how new weights reach it.

One engine serves the module. The tests run in file order, because they take it through its life:
version 0, an update under a request in flight, later versions, and at last weights that are wrong.
"""

from __future__ import annotations

import asyncio
import copy
import os
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import numpy as np
import pytest
from cpu_engine import cpu_spec

from actors.generation import GenerationActor
from actors.vllm_settings import engine_environment
from rlsys.assets import shipped_path
from rlsys.errors import SyncError
from rlsys.types import Completion, Floats, GenerationRequest, Tokens

pytestmark = pytest.mark.slow

T = TypeVar("T")
ENGINE = 3
BLOCK = 32
"""Tokens of a block of the prefix cache on the CPU."""
PROMPT = np.random.default_rng(0).integers(4, 104, 3 * BLOCK + 5).astype(np.int32)
CANARY = (PROMPT[:30], PROMPT[:20])
"""Shorter than a block, so that the start of the engine caches no part of PROMPT."""


@dataclass
class Serving:
    """The engine, the loop it lives on, and the transformers model with the same weights."""

    actor: GenerationActor
    runner: asyncio.Runner
    model: Any
    folder: Path

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(main)

    def generate(self, *requests: GenerationRequest) -> list[list[Completion]]:
        return self.run(self.actor.generate(requests))

    def perturb(self) -> None:
        """Move every weight of the transformers model."""
        import torch

        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.05)

    async def load(self) -> None:
        """Send the transformers model's weights in two bucket files; the update stays open."""
        from safetensors.torch import save_file

        weights = list(self.model.named_parameters())  # the tied head is its embedding
        for bucket, part in enumerate((weights[:3], weights[3:])):
            path = self.folder / f"bucket-{bucket}.safetensors"
            save_file({name: p.detach().clone() for name, p in part}, path)
            await self.actor.receive_files([str(path)])

    async def update(self, version: int) -> None:
        """A whole update to the transformers model's weights, the gate still closed."""
        await self.actor.begin_update()
        await self.load()
        await self.actor.finish_update(version)

    async def verify(self, offset: float = 0.0) -> float:
        """Compare with the transformers model, whose log-probs are moved by `offset`."""
        sequences = (PROMPT[10:50], PROMPT[50:90])
        logprobs = [self.logprobs(s) + np.float32(offset) for s in sequences]
        return await self.actor.verify(sequences, logprobs, 1e-4)

    def logprobs(self, token_ids: Tokens, temperature: float = 1.0) -> Floats:
        """transformers' log-prob of every token but the first."""
        import torch

        ids = torch.from_numpy(token_ids.astype(np.int64))[None]
        with torch.no_grad():
            logits = self.model(ids).logits[0, :-1].float() / temperature
        chosen = torch.log_softmax(logits, dim=-1).gather(1, ids[0, 1:, None])
        values: Floats = chosen[:, 0].numpy()
        return values

    def gap(self, prompt: Tokens, completion: Completion, temperature: float = 1.0) -> float:
        """Largest distance between the engine's log-probs of its samples and transformers'."""
        whole = np.concatenate([prompt, completion.token_ids])
        expected = self.logprobs(whole, temperature)[len(prompt) - 1 :]
        return float(np.abs(completion.logprobs - expected).max())


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    spec = cpu_spec(
        shipped_path("tiny"),
        index=ENGINE,
        max_length=1024,
        max_sequences=16,
        canary=CANARY,
        kv_cache_bytes=32 << 20,
    )
    variables = engine_environment(on_gpu=False, threads=1)
    # A fork of this process would inherit the threads of other tests' libraries, in mid-air.
    variables["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
    with mock.patch.dict(os.environ, variables), asyncio.Runner() as runner:
        actor = GenerationActor(spec)
        try:
            runner.run(actor.start(serve=True))
            yield Serving(actor, runner, _load_model(), tmp_path_factory.mktemp("buckets"))
        finally:
            runner.run(actor.close())


def _continued(first: Any, second: Any, whole: Tokens, read: int) -> Floats:
    """Log-probs of the tokens after `read` + 1, if `second` goes on with the cache of `first`."""
    import torch

    ids = torch.from_numpy(whole.astype(np.int64))[None]
    with torch.no_grad():
        cache = first(ids[:, :read], use_cache=True).past_key_values
        logits = second(ids[:, read:], past_key_values=cache).logits[0, :-1]
    logprobs = logits.float().log_softmax(-1).gather(1, ids[0, read + 1 :, None])
    return np.asarray(logprobs[:, 0], np.float32)


def _load_model() -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    return AutoModelForCausalLM.from_pretrained(shipped_path("tiny"), dtype=torch.float32)


def request(token_ids: Tokens = PROMPT, **changes: Any) -> GenerationRequest:
    """Three samples of forty tokens that nothing stops."""
    base = GenerationRequest(
        token_ids=token_ids, n=3, max_tokens=40, stop_token_ids=(), temperature=1.0, seed=5
    )
    return replace(base, **changes)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_samples_carry_the_log_probs_of_the_weights(serving: Serving, temperature: float) -> None:
    prompts = (PROMPT, PROMPT[7:20])
    results = serving.generate(*(request(p, temperature=temperature) for p in prompts))
    for prompt, completions in zip(prompts, results, strict=True):
        assert len({c.token_ids.tobytes() for c in completions}) == 3
        for completion in completions:
            assert completion.token_ids.dtype == np.int32
            assert completion.logprobs.shape == completion.token_ids.shape == (40,)
            assert not completion.stopped
            assert completion.versions == (0, 0)
            assert completion.engine == ENGINE
            assert serving.gap(prompt, completion, temperature) < 1e-4


def test_only_the_likeliest_tokens_are_sampled_below_top_p_and_within_top_k(
    serving: Serving,
) -> None:
    by_p, by_k, (greedy,) = serving.generate(
        request(top_p=1e-6), request(top_k=1), request(n=1, temperature=0.0, seed=None)
    )
    for completion in [*by_p, *by_k]:
        np.testing.assert_array_equal(completion.token_ids, greedy.token_ids)


def test_sample_i_is_drawn_under_seed_plus_i(serving: Serving) -> None:
    (together,) = serving.generate(request(seed=11))
    alone = serving.generate(*(request(n=1, seed=11 + i) for i in range(3)))
    for one, (other,) in zip(together, alone, strict=True):
        np.testing.assert_array_equal(one.token_ids, other.token_ids)
    (unlike,) = serving.generate(request(seed=12))
    assert together[0].token_ids.tolist() != unlike[0].token_ids.tolist()


def test_candidates_are_the_likeliest_tokens_and_only_told_if_asked(serving: Serving) -> None:
    import torch

    greedy = request(n=1, temperature=0.0, seed=None, top_logprobs=5)
    ((told,), untold) = serving.generate(greedy, request(n=1, seed=5))
    assert untold[0].candidates is None
    assert told.candidates is not None
    ids_LK, logprobs_LK = told.candidates
    assert ids_LK.shape == logprobs_LK.shape == (40, 5)
    assert ids_LK.dtype == np.int32
    assert logprobs_LK.dtype == np.float32
    np.testing.assert_array_equal(ids_LK[:, 0], told.token_ids)
    np.testing.assert_array_equal(logprobs_LK[:, 0], told.logprobs)
    whole = torch.from_numpy(np.concatenate([PROMPT, told.token_ids]).astype(np.int64))[None]
    with torch.no_grad():
        logits_LV = serving.model(whole).logits[0, len(PROMPT) - 1 : -1]
    expected = torch.log_softmax(logits_LV, dim=-1).topk(5)
    np.testing.assert_allclose(logprobs_LK, expected.values.numpy(), atol=1e-4)
    np.testing.assert_array_equal(ids_LK[:, 0], expected.indices[:, 0].numpy())
    # What is told does not change what is sampled.
    (alone,) = serving.generate(request(n=1, seed=5))
    np.testing.assert_array_equal(alone[0].token_ids, untold[0].token_ids)


def test_the_stop_token_is_kept_and_ends_the_sample(serving: Serving) -> None:
    (free,) = serving.generate(request())
    stop = int(free[0].token_ids[9])
    (stopped,) = serving.generate(request(stop_token_ids=(stop,)))
    for completion, whole in zip(stopped, free, strict=True):
        ends = np.flatnonzero(whole.token_ids == stop)
        length = ends[0] + 1 if len(ends) else len(whole.token_ids)
        np.testing.assert_array_equal(completion.token_ids, whole.token_ids[:length])
        assert len(completion.logprobs) == length
        assert completion.stopped == bool(len(ends))
    assert stopped[0].stopped


def test_a_request_in_flight_goes_on_under_the_new_weights(serving: Serving) -> None:
    old = replace(serving, model=copy.deepcopy(serving.model))
    prompt = PROMPT[:10]

    async def scenario() -> list[Completion]:
        long = request(prompt, n=2, max_tokens=500)
        flight = asyncio.ensure_future(serving.actor.generate([long]))
        await serving.actor.generate([request(n=1, max_tokens=5)])  # decoded in the same steps
        assert not flight.done()
        serving.perturb()
        await serving.update(1)
        assert await serving.verify() < 1e-4
        return (await flight)[0]

    completions = serving.run(scenario())
    assert np.abs(serving.logprobs(PROMPT) - old.logprobs(PROMPT)).mean() > 0.1
    for completion in completions:
        assert completion.versions == (0, 1)
        assert len(completion.token_ids) == 500
        first = replace(
            completion, token_ids=completion.token_ids[:2], logprobs=completion.logprobs[:2]
        )
        assert old.gap(prompt, first) < 1e-4
        assert old.gap(prompt, completion) > 0.1
        # The new weights go on with the cache that the old ones filled.
        whole = np.concatenate([prompt, completion.token_ids])
        ours = old.logprobs(whole)[len(prompt) - 1 :]
        switch = int(np.flatnonzero(np.abs(ours - completion.logprobs) > 1e-3)[0])
        read = len(prompt) + switch - 1
        theirs = _continued(old.model, serving.model, whole, read)
        assert np.abs(theirs - completion.logprobs[switch:]).max() < 1e-4


def test_a_prefix_cached_under_older_weights_is_not_seen(serving: Serving) -> None:
    def cached_share() -> float:
        before = serving.run(serving.actor.counts())
        counted = (before.prompt_tokens, before.cached_tokens)
        (completions,) = serving.generate(request(n=1))
        assert completions[0].versions == (version, version)
        assert serving.gap(PROMPT, completions[0]) < 1e-4
        after = serving.run(serving.actor.counts())
        return (after.cached_tokens - counted[1]) / (after.prompt_tokens - counted[0])

    version = 1
    assert cached_share() == 0.0
    assert cached_share() == pytest.approx(3 * BLOCK / len(PROMPT))
    version = 2
    serving.perturb()
    serving.run(serving.update(2))
    serving.run(serving.verify())
    assert cached_share() == 0.0
    assert cached_share() == pytest.approx(3 * BLOCK / len(PROMPT))


def test_new_requests_wait_until_the_canary_has_passed(serving: Serving) -> None:
    async def scenario() -> list[list[Completion]]:
        await serving.actor.begin_update()
        waiting = asyncio.ensure_future(serving.actor.generate([request(n=1, max_tokens=4)]))
        await serving.load()
        await serving.actor.finish_update(3)
        await asyncio.wait([waiting], timeout=0.5)
        assert not waiting.done()
        await serving.verify()
        return await waiting

    ((completion,),) = serving.run(scenario())
    assert completion.versions == (3, 3)


def test_the_canary_does_not_wait_for_requests_that_fill_the_engine(serving: Serving) -> None:
    async def scenario() -> list[list[list[Completion]]]:
        thoughts = [request(PROMPT[:10], n=8, max_tokens=500, seed=s) for s in (1, 2, 3)]
        running = [asyncio.ensure_future(serving.actor.generate([t])) for t in thoughts]
        await asyncio.sleep(0.2)
        await serving.update(4)
        assert await serving.verify() < 1e-4
        assert serving.actor._admission._waiting  # neither of the first two has made room
        return await asyncio.gather(*running)

    thoughts = serving.run(scenario())
    assert [group[0].versions for (group,) in thoughts] == [(3, 4), (3, 4), (4, 4)]


def test_an_engine_with_wrong_weights_never_serves_again(serving: Serving) -> None:
    serving.run(serving.update(5))
    with pytest.raises(SyncError, match=r"engine 3 differs .* by 5\.00e-01 nats .* at version 5"):
        serving.run(serving.verify(offset=0.5))
    with pytest.raises(TimeoutError):
        serving.run(asyncio.wait_for(serving.actor.generate([request()]), timeout=1.0))
