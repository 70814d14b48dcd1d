"""Weight sync over Ray: how weights travel, and the connection of both ends."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from actors.pools import GenerationPool
from learner.group import LearnerGroup
from learner.sync import SyncSpec
from rlsys.config import RunConfig
from rlsys.launch.resources import transport_of
from rlsys.training.weight_sync import WeightSync
from rlsys.types import Tokens


async def connect(
    config: RunConfig,
    learner: LearnerGroup,
    engines: GenerationPool,
    folder: str,
    canary: tuple[Tokens, ...],
) -> WeightSync:
    """Prepare both ends; for NCCL, learner and workers form a group at the first sync.

    Args:
        folder: where files of weights go, if the transport needs some.
        canary: sequences on which every sync is checked.
    """
    transport = transport_of(config)
    spec = SyncSpec(transport=transport, bucket_bytes=config.sync.bucket_mib << 20, folder=folder)

    async def regroup() -> None:
        host, port = await learner.address()
        workers = config.generation.tensor_parallel
        size = 1 + workers * len(engines.sink.members)
        await learner.open_sync(replace(spec, port=port, world_size=size))
        # At the same time: each end waits until all members of the group are there.
        await asyncio.gather(learner.join_sync(host), engines.sink.join_nccl(host, port, workers))

    return WeightSync(
        source=learner,
        sink=engines.sink,
        buckets=await learner.open_sync(spec),
        collective=transport == "nccl",
        regroup=regroup,
        deadline_s=config.sync.deadline_s,
        canary=canary,
        tolerance=config.canary_tolerance,
    )
