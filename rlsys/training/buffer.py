"""The buffer between generation and training: bounded admission, taken in admission order.

Why the staleness bound S holds: there are P groups per step and the capacity is (S + 1) * P. Group
i is admitted only while i < released + capacity, so released > i - (S + 1) * P. Slots are released
P at a time, and only after the weights of the next version are live, so at admission the version is
at least released / P, which is at least floor(i / P) - S. Group i is trained at version floor(i /
P).

Example: with P = 2 and S = 1, groups 0 to 3 are admitted at version 0, groups 4 and 5 once version
1 is live. Groups 2 and 3 are trained at version 1, groups 4 and 5 at version 2.
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
        # One condition for all waits: there are few waiting tasks, and each checks its own rule.
        self._changed = asyncio.Condition()

    @property
    def admitted(self) -> int:
        """How many tickets were given out, those before `start` included."""
        return self._admitted

    async def admit(self) -> int:
        """Return the next ticket; waits for a slot, unblocked by release."""
        async with self._changed:
            # Counted from the released groups and not from the taken ones: a taken group is still
            # being trained, and the weights that result from it are not live yet.
            await self._changed.wait_for(lambda: self._admitted < self._released + self._capacity)
            self._admitted += 1
            return self._admitted - 1

    async def finish(self, ticket: int, group: FinishedGroup) -> None:
        """Store the finished group of `ticket`."""
        async with self._changed:
            self._finished[ticket] = group
            self._changed.notify_all()

    async def take(self, count: int) -> list[FinishedGroup]:
        """Return the next `count` groups in admission order; waits for them, unblocked by finish.

        Taking groups as they finish would break the staleness bound, and short answers would be
        trained more often than long ones.
        """
        wanted = range(self._taken, self._taken + count)
        async with self._changed:
            await self._changed.wait_for(lambda: all(t in self._finished for t in wanted))
            # No await since the check: a task that is cancelled while it waits has taken nothing.
            self._taken += count
            return [self._finished.pop(t) for t in wanted]

    async def release(self, count: int) -> None:
        """Free the slots of taken groups; call it when the weights trained on them are live."""
        async with self._changed:
            self._released += count
            self._changed.notify_all()

    def finished(self) -> dict[int, FinishedGroup]:
        """Return the groups that are finished and not yet taken, by ticket."""
        # These go into a checkpoint. Groups that are still rolled out are started again on resume.
        return dict(self._finished)
