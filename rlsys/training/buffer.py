"""The buffer between generation and training: bounded admission, taken in admission order.

A training step takes P groups. With dynamic sampling it skips groups without signal on the way:
they are dropped, and the slot of a dropped group is free at once for its replacement. A step drops
at most D groups. After that it keeps groups without signal too, so every step has P groups.

What is kept depends on the signals of the groups in admission order, and never on the order in
which they finish. So a resumed run makes the same choices.

Why the staleness bound S holds: the capacity is (S + 1) * P, and group i is admitted only while
i < released + capacity. At version v, v * P trained groups and d dropped groups are released, all d
of them before i. So i - d < (v + S + 1) * P. Group i is taken by the step that trains at version t
only if t * P kept groups come before it. At least d dropped groups come before it as well, so
t * P <= i - d. Together: t <= v + S.

Example: with P = 2 and S = 1, groups 0 to 3 are admitted at version 0, groups 4 and 5 once version
1 is live. Groups 2 and 3 are trained at version 1, groups 4 and 5 at version 2. If group 1 is
dropped, group 4 is admitted at once, and groups 0 and 2 are trained at version 0.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from rlsys.training.protocols import FinishedGroup


class StepGroups(NamedTuple):
    """The groups that one training step takes out of the buffer, in admission order."""

    kept: list[FinishedGroup]
    """Exactly P groups, to be trained."""
    dropped: list[FinishedGroup]
    """Groups without signal that the step skipped."""

    @property
    def all(self) -> list[FinishedGroup]:
        """Both, in admission order."""
        return sorted(self.kept + self.dropped, key=lambda group: group.report.index)


class GroupBuffer:
    """Tickets 0, 1, 2, … from `start`; a ticket is admitted, finished, taken, then released."""

    def __init__(
        self, per_step: int, max_staleness: int, *, start: int = 0, most_dropped: int = 0
    ) -> None:
        """Give `per_step` groups (P) to every step, and drop at most `most_dropped` (D) for it."""
        self._per_step = per_step
        self._most_dropped = most_dropped
        self._capacity = (max_staleness + 1) * per_step
        self._admitted = start
        self._released = start
        self._judged = start
        """Tickets before this one are kept or dropped; it and the later ones are not judged."""
        self._steps: list[tuple[list[int], list[int]]] = [([], [])]
        """Kept and dropped tickets of the next steps; the last entry may lack kept tickets."""
        self._next = start
        self._finished: dict[int, FinishedGroup] = {}
        # One condition for all waits: there are few waiting tasks, and each checks its own rule.
        self._changed = asyncio.Condition()

    @property
    def admitted(self) -> int:
        """How many tickets were given out, those before `start` included."""
        return self._admitted

    @property
    def next(self) -> int:
        """The first ticket that no step has taken: a run that goes on from here starts with it."""
        return self._next

    async def admit(self) -> int:
        """Return the next ticket; waits for a slot, unblocked by release and by drops."""
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
            self._judge()
            self._changed.notify_all()

    async def take(self) -> StepGroups:
        """Return the groups of the next step; waits for them, unblocked by finish.

        Taking groups as they finish would break the staleness bound, and short answers would be
        trained more often than long ones.
        """
        async with self._changed:
            await self._changed.wait_for(lambda: len(self._steps[0][0]) == self._per_step)
            # No await since the check: a task that is cancelled while it waits has taken nothing.
            kept, dropped = self._steps.pop(0)
            self._next = kept[-1] + 1
            return StepGroups(
                [self._finished.pop(t) for t in kept], [self._finished.pop(t) for t in dropped]
            )

    async def release(self) -> None:
        """Free the slots of a step's kept groups; call it when the new weights are live."""
        async with self._changed:
            self._released += self._per_step
            self._changed.notify_all()

    def finished(self) -> dict[int, FinishedGroup]:
        """Return the groups that are finished and not yet taken, by ticket."""
        # These go into a checkpoint. Groups that are still rolled out are started again on resume.
        # Dropped groups of later steps are among them: a resumed run drops them again, and so
        # their steps have the same groups.
        return dict(self._finished)

    def _judge(self) -> None:
        """Keep or drop every finished group whose predecessors are all judged."""
        while (group := self._finished.get(self._judged)) is not None:
            kept, dropped = self._steps[-1]
            if group.report.signal or len(dropped) == self._most_dropped:
                kept.append(self._judged)
            else:
                dropped.append(self._judged)
                self._released += 1
            if len(kept) == self._per_step:
                self._steps.append(([], []))
            self._judged += 1
