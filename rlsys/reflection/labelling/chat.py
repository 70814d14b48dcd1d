"""Large models as teachers: an OpenAI-compatible endpoint, or engines of this process."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from rlsys.config import PromptConfig
from rlsys.config.reflection import EndpointTeacher
from rlsys.endpoints import EndpointFailure, ask, endpoint_client
from rlsys.errors import EngineError, ResourceError
from rlsys.tokenization.prompts import PromptRenderer
from rlsys.tokenization.tokenizer import eos_ids
from rlsys.types import GenerationRequest, Generator, Problem

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class EndpointChat:
    """A Chat over any server with the chat completions API: a hosted model, or `vllm serve`."""

    def __init__(self, config: EndpointTeacher) -> None:
        """Raises ResourceError and ConfigError as `endpoint_client` does."""
        self._config = config
        self._free = asyncio.Semaphore(config.concurrency)
        self._client = endpoint_client(config)

    async def check(self) -> None:
        """Request one token. Raises ResourceError if the endpoint does not return one.

        Call it before work starts, so that a wrong address is found before thoughts are sampled.
        """
        try:
            await self.complete("1+1", 1)
        except EngineError as error:
            raise ResourceError(
                f"{error}; start the server, or correct teacher.base_url, teacher.model or "
                "teacher.api_key_env"
            ) from error

    async def complete(self, prompt: str, max_tokens: int) -> str:
        """Return the greedy reply. Raises EngineError if all retries of the client fail."""
        config = self._config
        async with self._free:
            try:
                reply = await ask(
                    self._client, config.model, prompt, temperature=0.0, max_tokens=max_tokens
                )
            except EndpointFailure as failure:
                raise EngineError(
                    f"teacher {config.model!r} at {config.base_url} does not answer ({failure})"
                ) from failure
        return reply.content

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()


class EngineChat:
    """A Chat over a model that a generator serves."""

    def __init__(
        self, generator: Generator, tokenizer: PreTrainedTokenizerBase, *, max_length: int
    ) -> None:
        """`max_length` is the most tokens of a prompt and its reply together."""
        self._generator = generator
        self._tokenizer = tokenizer
        self._renderer = PromptRenderer(tokenizer, PromptConfig())
        self._stop = eos_ids(tokenizer)
        self._max_length = max_length

    async def complete(self, prompt: str, max_tokens: int) -> str:
        """Return the greedy reply. Raises EngineError for a long prompt or without a reply."""
        ids = self._renderer.render(Problem(id="", text=prompt, answer=""))
        room = self._max_length - len(ids)
        if room < 1:
            raise EngineError(
                f"a prompt of {len(ids)} tokens leaves no room for a reply in the "
                f"{self._max_length} tokens of the teacher"
            )
        request = GenerationRequest(
            token_ids=ids,
            n=1,
            max_tokens=min(max_tokens, room),
            stop_token_ids=self._stop,
            temperature=0.0,
            seed=None,
        )
        ((reply,),) = await self._generator.generate([request])
        return str(self._tokenizer.decode(reply.token_ids.tolist(), skip_special_tokens=True))
