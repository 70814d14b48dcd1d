"""How often the second grading policy disagrees with the first one: metrics of a training step."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress

from ray.exceptions import RayActorError

AUDITED = "grading/audited"
DISAGREED = "grading/disagreed"

Counts = Callable[[], Awaitable[Mapping[str, int]]]
"""Returns the totals of one grading actor since its start, see `GradingActor.counts`."""


class GradingAudit:
    """Turns the totals of all grading actors into the numbers of one step."""

    def __init__(self, graders: Sequence[Counts]) -> None:
        """`graders` return the totals of one actor each."""
        self._graders = list(graders)
        self._before = [(0, 0)] * len(self._graders)

    async def metrics(self) -> dict[str, float]:
        """Return the audited comparisons since the last call, and the share that disagreed.

        The share is missing if nothing was audited.
        """
        steps = await asyncio.gather(*map(self._since, range(len(self._graders))))
        audited, disagreed = (sum(column) for column in zip(*steps, strict=True))
        shares = {DISAGREED: disagreed / audited} if audited else {}
        return {AUDITED: float(audited), **shares}

    async def _since(self, grader: int) -> tuple[int, int]:
        """Return how many comparisons this actor audited since the last call, and disagreements."""
        before = self._before[grader]
        with suppress(RayActorError):  # it is starting again; the next step has its counts
            totals = await self._graders[grader]()
            now = totals["audited"], totals["disagreed"]
            if now[0] < before[0]:  # the actor was started again, so its totals began at 0
                before = (0, 0)
            self._before[grader] = now
            return now[0] - before[0], now[1] - before[1]
        return 0, 0
