"""One weight sync: every bucket from the learner to every engine, then the canary.

    export bucket 0; close the engines' gates; load bucket k while k + 1 is exported; finish; verify

Every sync has a deadline, and an engine with wrong weights never opens its gate again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from rlsys.errors import SyncError
from rlsys.types import Floats, Tokens


class WeightSource(Protocol):
    """The learner's side."""

    async def num_buckets(self) -> int:
        """Buckets of one sync."""
        ...

    async def send(self, bucket: int) -> object:
        """Export or broadcast one bucket; the result is given to the sink."""
        ...

    async def sequence_logprobs(self, sequences: Sequence[Tokens]) -> list[Floats]:
        """Log-probs of fixed sequences under the learner's weights."""
        ...


class WeightSink(Protocol):
    """The engines' side."""

    async def begin_update(self) -> None:
        """Close the gates and open the reload."""
        ...

    async def receive(self, bucket: int, sent: object) -> None:
        """Load one bucket."""
        ...

    async def finish_update(self, version: int) -> None:
        """Make the weights live."""
        ...

    async def verify(self, sequences: Sequence[Tokens], logprobs: Sequence[Floats]) -> float:
        """Compare log-probs, open the gates and return the gap, or raise SyncError."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSync:
    """Publishes the learner's weights; `collective` transports send and receive at once."""

    source: WeightSource
    sink: WeightSink
    collective: bool
    deadline_s: float
    canary: tuple[Tokens, ...]

    async def publish(self, version: int) -> float:
        """Make the learner's weights live as `version`; return the canary's mean gap in nats.

        Raises SyncError past the deadline or when the canary fails; the run must not go on.
        """
        try:
            async with asyncio.timeout(self.deadline_s):
                await self._transfer(version)
                expected = await self.source.sequence_logprobs(self.canary)
                return await self.sink.verify(self.canary, expected)
        except TimeoutError as error:
            raise SyncError(
                f"weights of version {version} did not reach every engine within "
                f"sync.deadline_s {self.deadline_s:g}; look at the engines' log for the cause"
            ) from error

    async def _transfer(self, version: int) -> None:
        count = await self.source.num_buckets()
        if self.collective:
            await self.sink.begin_update()
            for bucket in range(count):
                # gather raises the first error at once; the other end may never return.
                await asyncio.gather(self.source.send(bucket), self.sink.receive(bucket, None))
        else:
            sent = await self.source.send(0)
            await self.sink.begin_update()
            for bucket in range(count):
                ahead = asyncio.ensure_future(self._send_if(bucket + 1 < count, bucket + 1))
                await self.sink.receive(bucket, sent)
                sent = await ahead
        await self.sink.finish_update(version)

    async def _send_if(self, wanted: bool, bucket: int) -> object:
        return await self.source.send(bucket) if wanted else None
