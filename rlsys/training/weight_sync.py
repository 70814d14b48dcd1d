"""One weight sync: every bucket from the learner to every engine, then a check of the result.

    send -> begin_update -> receive -> finish_update -> verify

A broadcast sends while it receives.
The check is a canary: fixed sequences whose log-probs the learner and every engine compute. Every
sync has a deadline, and an engine with wrong weights never serves again.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from rlsys.errors import LearnerDied, SyncError
from rlsys.types import Floats, Tokens
from rlsys.weights import Bucket, SentPart


class WeightSource(Protocol):
    """The learner's side."""

    async def send(self) -> Sequence[Sequence[SentPart]]:
        """Export or broadcast all buckets; the result, per bucket and rank, is for the sink."""
        ...

    async def sequence_logprobs(self, sequences: Sequence[Tokens]) -> list[Floats]:
        """Log-probs of fixed sequences under the learner's weights, see WeightSink.verify."""
        ...

    async def answers(self) -> bool:
        """Return True if the learner takes calls; one that hangs in a call does not."""
        ...


class WeightSink(Protocol):
    """The engines' side. An engine that dies leaves, and each call goes on with the others."""

    @property
    def members(self) -> frozenset[int]:
        """The engines that take part."""
        ...

    def alone(self, engine: int) -> WeightSink:
        """Return a sink for one engine, which may have left."""
        ...

    def join(self, engine: int) -> None:
        """Let an engine take part again."""
        ...

    async def begin_update(self) -> None:
        """Stop serving and get ready for new weights."""
        ...

    async def receive(self, buckets: Sequence[Bucket], sent: Sequence[Sequence[SentPart]]) -> None:
        """Load all buckets; `sent` is empty if they come by broadcast."""
        ...

    async def finish_update(self, version: int) -> None:
        """Make the weights live as `version`, without serving yet."""
        ...

    async def verify(
        self, sequences: Sequence[Tokens], logprobs: Sequence[Floats], tolerance: float
    ) -> float:
        """Compare log-probs and serve again; return the mean gap in nats, NaN without engines.

        Args:
            sequences: token ids.
            logprobs: per sequence [len - 1], the learner's log-prob of every token but the first,
                at temperature 1.
            tolerance: largest mean absolute gap in nats.

        Raises:
            SyncError: the gap is larger.
        """
        ...


@dataclass(slots=True, kw_only=True)
class WeightSync:
    """Publishes the learner's weights to the engines."""

    source: WeightSource
    sink: WeightSink
    buckets: Sequence[Bucket]
    """What the source sends, in this order."""
    collective: bool
    """True if sending and receiving a bucket wait for each other, as in a broadcast."""
    deadline_s: float
    canary: tuple[Tokens, ...]
    tolerance: float
    """Largest mean gap on the canary in nats."""
    regroup: Callable[[frozenset[int]], Awaitable[None]] | None = None
    """Prepares both ends for updates of these engines; called when they are others than before. A
    collective gets a new group, and anything else the way that leads to their nodes."""
    _busy: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while the weights of the learner change or travel."""
    pause: dict[str, float] = field(default_factory=dict)
    """Seconds of the parts of the last update in which no engine served: `close` (until none
    serves), `load`, `finish` (until the new weights are live) and `check` (the canary)."""
    _publishing: bool = False
    _version: int = 0
    _grouped: frozenset[int] = frozenset()
    """The engines for which `regroup` was called."""

    @property
    def publishing(self) -> bool:
        """True while weights travel to the engines."""
        return self._publishing

    @asynccontextmanager
    async def learner_busy(self) -> AsyncIterator[None]:
        """Keep `catch_up` away while the learner trains and `publish` runs."""
        async with self._busy:
            yield

    async def prepare(self) -> None:
        """Bring both ends together, so that the first update does not wait for it, gate shut."""
        await self._regroup(self.sink.members)

    async def publish(self, version: int) -> float:
        """Make the learner's weights live as `version`; return the canary's mean gap in nats.

        Engines that die meanwhile are left out; the gap is NaN if none is left.

        Raises:
            SyncError: the deadline passed, or the canary failed; the run must not go on then.
            LearnerDied: the learner hangs in the update.
        """
        self._version = version
        return await self._bring(version, self.sink)

    async def catch_up(self, engine: int) -> int:
        """Bring the current weights to an engine that was started again; return their version.

        It serves afterwards and takes part in the next updates.

        Raises SyncError as `publish` does, and also if the engine died again.
        """
        async with self._busy:
            sink = self.sink.alone(engine)
            self._grouped = frozenset()  # the engine may be on another node than before
            if self.collective:
                # A group cannot be entered later, so all engines form a new one, and all of them
                # receive the weights that most of them have.
                self.sink.join(engine)
                sink = self.sink
            await self._bring(self._version, sink)
            if engine not in sink.members:
                raise SyncError(f"engine {engine} died again while it received its weights")
            self.sink.join(engine)
            return self._version

    async def _bring(self, version: int, sink: WeightSink) -> float:
        """Run one whole update."""
        before = sink.members
        if not before:
            return math.nan
        self._publishing = True
        try:
            # One deadline around everything: a dead process at either end leaves the other one
            # waiting inside a collective, which has no time-out of its own.
            async with asyncio.timeout(self.deadline_s):
                # Before the transfer, while the engines still serve.
                expected = await self.source.sequence_logprobs(self.canary)
                await self._transfer(version, sink)
                with self._timed("check"):
                    return await sink.verify(self.canary, expected, self.tolerance)
        except TimeoutError as error:
            if self.collective and sink.members != before:
                raise LearnerDied(
                    "the learner waits in a broadcast for an engine that died, and can only be "
                    "started again"
                ) from error
            if not await self.source.answers():
                raise LearnerDied(
                    f"the learner did not send the weights of version {version} within "
                    f"sync.deadline_s {self.deadline_s:g}, and it hangs; give the same command "
                    "again to go on from the last checkpoint"
                ) from error
            raise SyncError(
                f"weights of version {version} did not reach every engine within "
                f"sync.deadline_s {self.deadline_s:g}; look at the engines' log for the cause"
            ) from error
        finally:
            self._publishing = False

    async def _transfer(self, version: int, sink: WeightSink) -> None:
        if self.collective:
            await self._broadcast(sink)
        else:
            await self._hand_over(sink)
        with self._timed("finish"):
            await sink.finish_update(version)

    async def _broadcast(self, sink: WeightSink) -> None:
        # Nothing can be sent ahead: a broadcast needs its receivers, and those must be ready.
        with self._timed("close"):
            await sink.begin_update()
            # Only now: whoever is missing has left by the call before, and a group with a dead
            # member would wait for it for ever.
            if not sink.members:
                return
            await self._regroup(sink.members)
        # gather raises the first error at once; the other end may never return.
        with self._timed("load"):
            await asyncio.gather(self.source.send(), sink.receive(self.buckets, ()))

    async def _hand_over(self, sink: WeightSink) -> None:
        await self._regroup(sink.members)
        # All of it while the engines go on serving: a second copy of the weights costs less than
        # engines that wait.
        sent = await self.source.send()
        with self._timed("close"):
            await sink.begin_update()
        with self._timed("load"):
            await sink.receive(self.buckets, sent)

    async def _regroup(self, members: frozenset[int]) -> None:
        if self.regroup is not None and self._grouped != members:
            self._grouped = members
            await self.regroup(members)

    @contextmanager
    def _timed(self, part: str) -> Iterator[None]:
        started = time.monotonic()
        yield
        self.pause[part] = time.monotonic() - started
