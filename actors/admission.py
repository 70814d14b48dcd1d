"""Which requests of an engine run, and which wait for their turn."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Admission:
    """Lets a number of samples run at the same time; all others wait here.

    vLLM has a queue of its own, in order of arrival. With that order the answers to a batch of
    thoughts would run after all thoughts of the next batch, which arrived earlier; the learner
    would wait for them. And the canary of a weight sync would wait for a running thought to end.
    """

    def __init__(self, places: int) -> None:
        """Let at most `places` samples run at once."""
        self._places = self._free = places
        self._arrivals = itertools.count()
        self._waiting: list[tuple[bool, int, int, asyncio.Future[None]]] = []
        """Heap of (begins an episode, arrival, samples, turn)."""

    @asynccontextmanager
    async def admitted(self, samples: int, *, begun: bool) -> AsyncIterator[None]:
        """Wait for places for `samples`, and hold them for the time of the block.

        Of the requests that wait, those of episodes that have `begun` come first, then the oldest.
        """
        size = min(samples, self._places)  # a request for more runs alone
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (not begun, next(self._arrivals), size, turn))
        self._admit()
        try:
            await turn
            yield
        finally:
            # A request that was cancelled while it waited has no places to give back.
            if turn.done() and not turn.cancelled():
                self._free += size
            self._admit()

    def _admit(self) -> None:
        """Admit those whose turn it is; nobody overtakes a request that needs more places."""
        while self._waiting:
            _, _, size, turn = self._waiting[0]
            if not turn.cancelled():
                if size > self._free:
                    return
                self._free -= size
                turn.set_result(None)
            heapq.heappop(self._waiting)
