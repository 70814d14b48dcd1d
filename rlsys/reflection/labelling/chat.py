"""Large models behind the teacher's Chat protocol: an OpenAI-compatible endpoint or engines."""

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
    """Any server that speaks OpenAI's chat completions: a hosted model, or `vllm serve`."""

    def __init__(self, config: EndpointTeacher) -> None:
        """Raises what `endpoint_client` raises."""
        self._config = config
        self._free = asyncio.Semaphore(config.concurrency)
        self._client = endpoint_client(config)

    async def check(self) -> None:
        """Ask for one token. Raises ResourceError, before anything starts, if none comes."""
        try:
            await self.complete("1+1", 1)
        except EngineError as error:
            raise ResourceError(
                f"{error}; start the server, or correct teacher.base_url, teacher.model or "
                "teacher.api_key_env"
            ) from error

    async def complete(self, prompt: str, max_tokens: int) -> str:
        """Return the greedy reply. Raises EngineError once the client's own retries are spent."""
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
    """A chat model that a generator serves."""

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
        """Return the greedy reply. Raises EngineError if the prompt is too long or none comes."""
        ids = self._renderer.render(Problem(id="", text=prompt, answer=""))
        room = self._max_length - len(ids)
        if room < 1:
            raise EngineError(
                f"a question of {len(ids)} tokens to the teacher is beyond its {self._max_length}"
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
