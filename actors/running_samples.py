"""Samples that the engine goes on with while their first tokens are in use.

Long thoughts are asked for part by part (rlsys.environments.thought_parts). If each part were a
request of vLLM, a thought would stand still at every cut until the rest of it had been asked for
and taken in. Here one request of vLLM runs to the end, and each part waits for its tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import numpy as np

from actors.engine_state import ignore_result
from rlsys.types import Floats

if TYPE_CHECKING:
    from vllm import RequestOutput


class RunningSample:
    """One sample, as far as it has come."""

    def __init__(self, prompt_tokens: int) -> None:
        """`prompt_tokens` is the number of tokens before the sample."""
        self.prompt_tokens = prompt_tokens
        self.token_ids: list[int] = []
        self.first_version = 0
        """Policy version of the first token."""
        self.request_id = ""
        """vLLM's name of the request."""
        self.cached_tokens = 0
        self.finish_reason: str | None = None
        """None until the sample has ended; then "stop" or "length"."""
        self._logprobs: list[Floats] = []
        """Empty if log-probs do not come with vLLM's own results."""
        self._goal = 0
        self._there = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def run(self, sampling: Callable[[RunningSample], Coroutine[Any, Any, None]]) -> None:
        """Let `sampling` run, which calls `take` until the sample has ended."""
        self._task = asyncio.create_task(sampling(self))
        # Nobody waits between two parts; what broke the sample then is raised to the next one.
        self._task.add_done_callback(ignore_result)
        self._task.add_done_callback(lambda _: self._there.set())

    def take(self, output: RequestOutput) -> None:
        """Add the tokens that vLLM sends next."""
        (new,) = output.outputs
        self.request_id, self.cached_tokens = output.request_id, output.num_cached_tokens or 0
        self.token_ids.extend(new.token_ids)
        if new.logprobs:
            self._logprobs.append(np.asarray(new.logprobs.logprobs, np.float32))
        if output.finished:
            self.finish_reason = new.finish_reason
        if output.finished or len(self.token_ids) >= self._goal:
            self._there.set()

    async def reach(self, count: int) -> None:
        """Wait until there are `count` tokens or the sample has ended; raise what broke it."""
        assert self._task is not None
        self._goal = count
        if len(self.token_ids) < count and self.finish_reason is None and not self._task.done():
            self._there.clear()
            await self._there.wait()
        if self._task.done():
            self._task.result()

    def logprobs(self, start: int, stop: int) -> Floats:
        """Return the log-probs of tokens start to stop - 1, which came with vLLM's results."""
        return np.concatenate(self._logprobs)[start:stop]


class RunningSamples:
    """The running samples of an engine, by the names that travel with their parts."""

    def __init__(self, most: int) -> None:
        """Of ended samples that nobody continues, keep at most the `most` newest."""
        self._most = most
        self._samples: dict[str, RunningSample] = {}

    def get(self, name: str | None) -> RunningSample | None:
        """Return a sample; None if there is none of this name any more."""
        return None if name is None else self._samples.get(name)

    def add(self, name: str, sample: RunningSample) -> None:
        """Keep a sample until `remove`."""
        ended = [n for n, s in self._samples.items() if s.finish_reason is not None]
        for old in ended[: max(0, len(ended) - self._most)]:
            del self._samples[old]
        self._samples[name] = sample

    def remove(self, name: str) -> None:
        """Forget a sample whose last tokens have been handed out, or which broke."""
        self._samples.pop(name, None)
