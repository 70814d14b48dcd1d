"""Both ends of weight sync over Ray: the learner's group and the pool of engines."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from actors.generation import Canary
from actors.pools import GenerationPool
from learner.group import LearnerGroup
from learner.sync import SyncSpec, TensorSpec, Transport
from rlsys.config import RunConfig
from rlsys.launch.resources import colocated
from rlsys.types import Floats, Tokens


def transport_of(config: RunConfig) -> Transport:
    """sync.transport, or what suits where learner and engines run."""
    if config.sync.transport != "auto":
        return config.sync.transport
    if not config.learner.gpus_per_rank or not config.generation.gpus_per_engine:
        return "shm"
    return "ipc" if colocated(config.learner, config.generation) else "nccl"


class LearnerSource:
    """WeightSource over the learner's ranks."""

    def __init__(self, learner: LearnerGroup, buckets: int) -> None:
        self._learner = learner
        self._buckets = buckets

    async def num_buckets(self) -> int:
        """Buckets of one sync."""
        return self._buckets

    async def send(self, bucket: int) -> object:
        """What every rank says of bucket `bucket`."""
        return await self._learner.call_all("send_bucket", bucket)

    async def sequence_logprobs(self, sequences: Sequence[Tokens]) -> list[Floats]:
        """Log-probs of fixed sequences under the learner's weights."""
        return await self._learner.sequence_logprobs(sequences)


class EngineSink:
    """WeightSink over the pool of engines."""

    def __init__(
        self,
        engines: GenerationPool,
        transport: Transport,
        plan: Sequence[Sequence[TensorSpec]],
        tolerance: float,
    ) -> None:
        self._engines = engines
        self._transport = transport
        self._plan = plan
        self._tolerance = tolerance

    @property
    def collective(self) -> bool:
        """True if sending and receiving wait for each other."""
        return self._transport == "nccl"

    async def begin_update(self) -> None:
        """Close the gates and open the reload."""
        await self._engines.begin_update()

    async def receive(self, bucket: int, sent: Any) -> None:
        """Load one bucket: from rank 0's file, from the same card's rank, or from the broadcast."""
        specs = list(self._plan[bucket])
        match self._transport:
            case "shm":
                await self._engines.call_workers("rlsys_receive_file", sent[0])
            case "ipc":
                calls = [("rlsys_receive_ipc", handle, specs) for handle in sent]
                await self._engines.call_each(calls)
            case "nccl":
                await self._engines.call_workers("rlsys_receive_nccl", specs)

    async def finish_update(self, version: int) -> None:
        """Make the weights live."""
        await self._engines.finish_update(version)

    async def verify(self, sequences: Sequence[Tokens], logprobs: Sequence[Floats]) -> float:
        """Compare log-probs and open the gates."""
        canary = Canary(
            sequences=tuple(sequences), logprobs=tuple(logprobs), tolerance=self._tolerance
        )
        return await self._engines.verify(canary)


async def connect(
    config: RunConfig, learner: LearnerGroup, engines: GenerationPool, folder: str
) -> tuple[LearnerSource, EngineSink]:
    """Prepare both ends; for NCCL, bring learner and workers into one group."""
    transport = transport_of(config)
    host, port = (await learner.call_all("address"))[0]
    workers = config.generation.tensor_parallel
    spec = SyncSpec(
        transport=transport,
        bucket_bytes=config.sync.bucket_mib << 20,
        folder=folder,
        port=port,
        world_size=1 + workers * config.generation.engines,
    )
    plan = (await learner.call_all("open_sync", spec))[0]
    if transport == "nccl":
        async with asyncio.timeout(config.sync.deadline_s):
            await asyncio.gather(
                learner.call_all("join_sync", host), engines.join_nccl(host, port, workers)
            )
    source = LearnerSource(learner, len(plan))
    return source, EngineSink(engines, transport, plan, config.canary_tolerance)
