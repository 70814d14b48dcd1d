"""The buffer between generation and training: bounded admission, taken in admission order.

Why the staleness bound holds: with P groups per step and capacity (S + 1) * P, group i is admitted
only while i < released + capacity, and slots are released only after new weights are live, so at
admission the version is at least floor(i / P) - S. It is trained at version floor(i / P).
"""

from __future__ import annotations

import asyncio

from rlsys.training.protocols import FinishedGroup


class GroupBuffer:
    """Tickets 0, 1, 2, … from `start`; a ticket is admitted, finished, taken, then released."""

    def __init__(self, capacity: int, start: int = 0) -> None:
        self._capacity = capacity
        self._admitted = start
        self._taken = start
        self._released = start
        self._finished: dict[int, FinishedGroup] = {}
        self._changed = asyncio.Condition()

    async def admit(self) -> int:
        """Return the next ticket; waits for a slot, unblocked by release."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._admitted < self._released + self._capacity)
            self._admitted += 1
            return self._admitted - 1

    async def finish(self, ticket: int, group: FinishedGroup) -> None:
        """Hand in the grown group of `ticket`."""
        async with self._changed:
            self._finished[ticket] = group
            self._changed.notify_all()

    async def take(self, count: int) -> list[FinishedGroup]:
        """Return the next `count` groups in admission order; waits for them, unblocked by finish.

        Taking groups as they finish instead would break the staleness bound and favour short ones.
        """
        wanted = range(self._taken, self._taken + count)
        async with self._changed:
            await self._changed.wait_for(lambda: all(t in self._finished for t in wanted))
            self._taken += count
            return [self._finished.pop(t) for t in wanted]

    async def release(self, count: int) -> None:
        """Free the slots of taken groups; call once weights newer than theirs are live."""
        async with self._changed:
            self._released += count
            self._changed.notify_all()

    def finished(self) -> dict[int, FinishedGroup]:
        """Groups that are grown and not yet taken, by ticket."""
        return dict(self._finished)
