"""One weight sync: every bucket from the learner to every engine, then a check of the result.

    send bucket 0 -> begin_update -> receive bucket k while k + 1 is sent -> finish_update -> verify

The check is a canary: fixed sequences whose log-probs the learner and every engine compute. Every
sync has a deadline, and an engine with wrong weights never serves again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from rlsys.errors import SyncError
from rlsys.types import Floats, Tokens
from rlsys.weights import Bucket, SentPart


class WeightSource(Protocol):
    """The learner's side."""

    async def send(self, bucket: int) -> Sequence[SentPart]:
        """Export or broadcast one bucket; the result is for the sink."""
        ...

    async def sequence_logprobs(self, sequences: Sequence[Tokens]) -> list[Floats]:
        """Log-probs of fixed sequences under the learner's weights, see WeightSink.verify."""
        ...


class WeightSink(Protocol):
    """The engines' side."""

    async def begin_update(self) -> None:
        """Stop serving and open the reload."""
        ...

    async def receive(self, bucket: Bucket, sent: Sequence[SentPart]) -> None:
        """Load one bucket; `sent` is empty if it comes by broadcast."""
        ...

    async def finish_update(self, version: int) -> None:
        """Make the weights live as `version`, without serving yet."""
        ...

    async def verify(
        self, sequences: Sequence[Tokens], logprobs: Sequence[Floats], tolerance: float
    ) -> float:
        """Compare log-probs and serve again; return the mean gap in nats.

        Args:
            sequences: token ids.
            logprobs: per sequence [len - 1], the learner's log-prob of every token but the first,
                at temperature 1.
            tolerance: largest mean absolute gap in nats.

        Raises:
            SyncError: the gap is larger.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
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

    async def publish(self, version: int) -> float:
        """Make the learner's weights live as `version`; return the canary's mean gap in nats.

        Raises SyncError after the deadline or if the canary fails; the run must not go on then.
        """
        try:
            # One deadline around everything: a dead process at either end leaves the other one
            # waiting inside a collective, which has no time-out of its own.
            async with asyncio.timeout(self.deadline_s):
                await self._transfer(version)
                # Not during the transfer: the ranks that send also compute this, and they do one
                # thing at a time.
                expected = await self.source.sequence_logprobs(self.canary)
                return await self.sink.verify(self.canary, expected, self.tolerance)
        except TimeoutError as error:
            raise SyncError(
                f"weights of version {version} did not reach every engine within "
                f"sync.deadline_s {self.deadline_s:g}; look at the engines' log for the cause"
            ) from error

    async def _transfer(self, version: int) -> None:
        if self.collective:
            await self._broadcast()
        else:
            await self._hand_over()
        await self.sink.finish_update(version)

    async def _broadcast(self) -> None:
        # Nothing can be sent ahead: a broadcast needs its receivers, and those an open reload.
        await self.sink.begin_update()
        for index, bucket in enumerate(self.buckets):
            # gather raises the first error at once; the other end may never return.
            await asyncio.gather(self.source.send(index), self.sink.receive(bucket, ()))

    async def _hand_over(self) -> None:
        # The engines go on serving while the first bucket is exported. From then on a bucket is
        # exported while the one before it is loaded.
        sent = await self.source.send(0)
        await self.sink.begin_update()
        for index, bucket in enumerate(self.buckets):
            ahead = asyncio.ensure_future(self._send_if_any(index + 1))
            await self.sink.receive(bucket, sent)
            sent = await ahead

    async def _send_if_any(self, index: int) -> Sequence[SentPart]:
        return await self.source.send(index) if index < len(self.buckets) else ()
