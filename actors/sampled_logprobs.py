"""The log-probs of a request's samples: from vLLM's own results, or fetched from where they wait.

On a GPU the worker keeps them (actors.logprob_keeper), and the actor fetches those of many requests
in one call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rlsys.errors import EngineError
from rlsys.types import Candidates, Floats, GenerationRequest

if TYPE_CHECKING:
    from vllm import CompletionOutput, RequestOutput


class Span(NamedTuple):
    """Positions start to stop - 1 of a request, prompt included."""

    request: str
    start: int
    stop: int


class LogprobFetcher:
    """Fetches log-probs for many requests in few calls: each takes all that ended meanwhile."""

    def __init__(self, take: Callable[[Sequence[Span]], Awaitable[bytes]]) -> None:
        """`take` is LogprobKeeper.take in the engine's worker."""
        self._take = take
        self._waiting: list[tuple[Span, asyncio.Future[Floats]]] = []
        self._task: asyncio.Task[None] | None = None

    async def fetch(self, span: Span) -> Floats:
        """Return the float32 log-probs of one ended request, [stop - start]."""
        future: asyncio.Future[Floats] = asyncio.get_running_loop().create_future()
        self._waiting.append((span, future))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._drain())
        return await future

    async def _drain(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            try:
                values = np.frombuffer(await self._take([s for s, _ in batch]), np.float32)
            except Exception as error:
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error)
                continue
            ends = np.cumsum([span.stop - span.start for span, _ in batch])
            for (_, future), part in zip(batch, np.split(values, ends[:-1]), strict=True):
                if not future.done():  # done if the caller was cancelled
                    future.set_result(part)


async def sampled_logprobs(
    request: GenerationRequest, output: RequestOutput, fetcher: LogprobFetcher | None
) -> list[Floats]:
    """Return per sample an array [tokens, 1 + top_logprobs]; the sampled token comes first.

    Args:
        request: what was asked for.
        output: vLLM's result.
        fetcher: None if log-probs come with `output`.

    Raises:
        EngineError: a token has no log-prob.
    """
    samples, start = output.outputs, len(request.token_ids)
    if fetcher is None or request.top_logprobs:
        width = 1 + request.top_logprobs
        return [
            np.asarray(sample.logprobs.logprobs, np.float32).reshape(-1, width)
            for sample in samples
        ]
    # vLLM runs n samples as n requests, whose names begin with the number of the sample.
    name = f"{{}}_{output.request_id}" if request.n > 1 else output.request_id
    spans = [Span(name.format(s.index), start, start + len(s.token_ids)) for s in samples]
    rows = await asyncio.gather(*map(fetcher.fetch, spans))
    if not all(np.isfinite(row).all() for row in rows):
        raise EngineError(
            f"request {output.request_id} of {len(spans)} samples has a token without a log-prob; "
            "its tokens cannot be trained on"
        )
    return [row[:, None] for row in rows]


def candidates(sample: CompletionOutput, logprobs: Floats) -> Candidates:
    """Return the most likely tokens of a sample whose `logprobs` are [tokens, 1 + top].

    At every position vLLM lists the sampled token first, then the most likely ones, which contain
    the sampled token again if it is among them.
    """
    ids = np.asarray(sample.logprobs.token_ids, np.int32).reshape(logprobs.shape)
    return Candidates(ids[:, 1:], logprobs[:, 1:])
