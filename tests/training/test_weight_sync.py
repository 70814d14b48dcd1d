"""Order of calls, deadline and canary of a weight sync, with hand-written ends."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest

from rlsys.errors import LearnerDied, SyncError
from rlsys.training.weight_sync import WeightSync
from rlsys.types import Floats, Tokens
from rlsys.weights import Bucket, BucketFile, SentPart

CANARY = (np.array([1, 2, 3], np.int32),)


class Ends:
    """Both ends of a sync; records what happens."""

    def __init__(self, slow_receive: float = 0.0, gap: float = 0.0) -> None:
        self.log: list[str] = []
        self._slow, self._gap = slow_receive, gap
        self.hangs = False

    @property
    def members(self) -> frozenset[int]:
        return frozenset({0})

    def alone(self, engine: int) -> Ends:
        return self

    def join(self, engine: int) -> None:
        raise AssertionError("nobody has left")

    async def send(self) -> Sequence[Sequence[SentPart]]:
        self.log.append("send")
        await asyncio.sleep(0)
        return [[BucketFile(path=f"file {bucket}"), None] for bucket in range(2)]

    async def sequence_logprobs(self, sequences: Sequence[Tokens]) -> list[Floats]:
        self.log.append("score")
        return [np.zeros(len(s) - 1, np.float32) for s in sequences]

    async def answers(self) -> bool:
        return not self.hangs

    async def begin_update(self) -> None:
        self.log.append("begin")

    async def receive(self, buckets: Sequence[Bucket], sent: Sequence[Sequence[SentPart]]) -> None:
        await asyncio.sleep(self._slow)
        files = [part.path for ranks in sent for part in ranks if isinstance(part, BucketFile)]
        self.log.append(f"receive {[name for ((name, _, _),) in buckets]} {files}")

    async def finish_update(self, version: int) -> None:
        self.log.append(f"finish {version}")

    async def verify(
        self, sequences: Sequence[Tokens], logprobs: Sequence[Floats], tolerance: float
    ) -> float:
        if self._gap > tolerance:
            raise SyncError("weights arrived wrong")
        self.log.append("verify")
        return self._gap


def sync(
    ends: Ends, collective: bool = False, deadline_s: float = 5.0, names: str = "ab"
) -> WeightSync:
    """A sync of one bucket per name."""
    return WeightSync(
        source=ends,
        sink=ends,
        buckets=[[(name, "float32", (2,))] for name in names],
        collective=collective,
        deadline_s=deadline_s,
        canary=CANARY,
        tolerance=0.1,
    )


def test_weights_are_exported_and_the_canary_is_scored_while_engines_serve() -> None:
    ends = Ends()
    assert asyncio.run(sync(ends).publish(7)) == 0.0
    assert ends.log == [
        "score",
        "send",
        "begin",
        "receive ['a', 'b'] ['file 0', 'file 1']",
        "finish 7",
        "verify",
    ]


def test_a_collective_sends_while_it_receives() -> None:
    ends = Ends()
    asyncio.run(sync(ends, collective=True).publish(1))
    assert ends.log == ["score", "begin", "send", "receive ['a', 'b'] []", "finish 1", "verify"]


@pytest.mark.parametrize("collective", [False, True])
def test_a_sync_past_its_deadline_is_an_error(collective: bool) -> None:
    ends = Ends(slow_receive=10.0)
    with pytest.raises(SyncError, match=r"version 3 did not reach .* sync.deadline_s 0.05"):
        asyncio.run(sync(ends, collective, deadline_s=0.05).publish(3))
    assert "verify" not in ends.log


@pytest.mark.parametrize("collective", [False, True])
def test_a_learner_that_hangs_in_a_sync_counts_as_dead(collective: bool) -> None:
    ends = Ends(slow_receive=10.0)
    ends.hangs = True
    with pytest.raises(LearnerDied, match=r"version 3 within sync.deadline_s 0.05, and it hangs"):
        asyncio.run(sync(ends, collective, deadline_s=0.05).publish(3))


def test_a_failed_canary_ends_the_sync() -> None:
    with pytest.raises(SyncError, match="arrived wrong"):
        asyncio.run(sync(Ends(gap=1.0)).publish(1))


def test_an_error_at_one_end_of_a_collective_does_not_wait_for_the_other() -> None:
    class Broken(Ends):
        async def send(self) -> Sequence[Sequence[SentPart]]:
            raise SyncError("the learner cannot send")

    with pytest.raises(SyncError, match="cannot send"):
        asyncio.run(sync(Broken(slow_receive=60.0), collective=True).publish(1))
