"""A Generator over the completions of an endpoint: prompts and completions are token ids.

Only ids make the cut of a thought exact, and let the forced end of the thought follow it without
being tokenized again with the text before it. `vllm serve` takes and returns them. An endpoint
that does not is refused by `check`, before anything is sampled.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import numpy as np

from rlsys.config.evaluation_sets import EvaluatedEndpoint
from rlsys.endpoints import endpoint_client, failure_reason, sampled_ids
from rlsys.errors import EngineError, ResourceError
from rlsys.types import Completion, GenerationRequest

REMEDY: Final = (
    "serve the model with `vllm serve`, or remove `endpoint` and let engines of rlsys run it"
)


class EndpointGenerator:
    """Sends every request to one endpoint, at most `concurrency` at once."""

    def __init__(self, client: Any, config: EvaluatedEndpoint) -> None:
        """`client` is an AsyncOpenAI of the endpoint."""
        self._client = client
        self._config = config
        self._free = asyncio.Semaphore(config.concurrency)

    async def check(self, prompt: Sequence[int]) -> None:
        """Ask for one token after `prompt`.

        Raises ResourceError if the endpoint does not answer, or not with token ids.
        """
        request = GenerationRequest(
            token_ids=np.array(prompt, np.int32),
            n=1,
            max_tokens=1,
            stop_token_ids=(),
            temperature=0.0,
            seed=0,
        )
        try:
            await self._complete(request)
        except EngineError as error:
            raise ResourceError(str(error)) from error

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[list[Completion]]:
        """Return the n completions of every request, in request order. Raises EngineError."""
        return list(await asyncio.gather(*(self._complete(r) for r in requests)))

    async def _complete(self, request: GenerationRequest) -> list[Completion]:
        from openai import APIConnectionError, APIStatusError, OpenAIError

        place = f"endpoint {self._config.base_url} with the model {self._config.model!r}"
        async with self._free:
            try:
                reply = await self._client.completions.create(**self._body(request))
            except APIStatusError as error:
                raise EngineError(
                    f"{place} refuses completions of token ids, without which a thought cannot be "
                    f"cut at a budget ({failure_reason(error)}); {REMEDY}"
                ) from error
            except APIConnectionError as error:
                raise EngineError(
                    f"{place} cannot be reached ({failure_reason(error)}); start it, or correct "
                    "endpoint.base_url, and give the same command again"
                ) from error
            except (OpenAIError, ValueError, RecursionError) as error:  # no JSON, or too deep
                raise EngineError(f"{place} fails ({failure_reason(error)}); {REMEDY}") from error
        choices = getattr(reply, "choices", None)
        found = [_completion(choice) for choice in choices] if isinstance(choices, list) else []
        completions = [completion for completion in found if completion is not None]
        if len(completions) != request.n:
            raise EngineError(
                f"{place} returns completions without token_ids, so the tokens of a thought cannot "
                f"be counted or cut at a budget; {REMEDY}"
            )
        return completions

    def _body(self, request: GenerationRequest) -> dict[str, Any]:
        """Return the request with every sampling setting stated.

        A server takes what is left out from the folder of the model.
        """
        return {
            "model": self._config.model,
            "prompt": request.token_ids.tolist(),
            "n": request.n,
            "max_tokens": request.max_tokens,
            "temperature": request.temperature,
            "top_p": request.top_p,
            "seed": request.seed,
            "stop": request.stop_text,
            "extra_body": {
                "top_k": request.top_k or 0,
                "min_p": 0.0,
                "repetition_penalty": 1.0,
                "stop_token_ids": list(request.stop_token_ids),
                "ignore_eos": True,  # the request names every token that ends it
                "include_stop_str_in_output": True,
                "skip_special_tokens": False,
                "return_token_ids": True,
            },
        }


def _completion(choice: Any) -> Completion | None:
    """Return a choice as a completion; None if it has no token ids. Log-probs are not asked for."""
    ids = sampled_ids(choice)
    if ids is None:
        return None
    return Completion(
        token_ids=np.array(ids, np.int32),
        logprobs=np.zeros(len(ids), np.float32),
        stopped=choice.finish_reason == "stop",
        versions=(0, 0),
        engine=0,
    )


@asynccontextmanager
async def endpoint_generator(
    config: EvaluatedEndpoint, prompt: Sequence[int]
) -> AsyncIterator[EndpointGenerator]:
    """Connect to an endpoint and check it with `prompt`; see EndpointGenerator.check.

    Raises ResourceError and ConfigError as endpoint_client.
    """
    async with endpoint_client(config) as client:
        generator = EndpointGenerator(client, config)
        await generator.check(prompt)
        yield generator
