"""Weight sync over Ray: how weights travel, and the connection of both ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from actors.pools import GenerationPool
from learner.group import LearnerGroup
from learner.sync import SyncSpec
from rlsys.config import RunConfig
from rlsys.errors import EngineDied
from rlsys.launch.resources import transport_of
from rlsys.training.weight_sync import WeightSync
from rlsys.types import Tokens
from rlsys.weights import Transport


async def connect(
    config: RunConfig,
    learner: LearnerGroup,
    engines: GenerationPool,
    folder: str,
    canary: tuple[Tokens, ...],
    tell: Callable[[str], None] = lambda line: None,
) -> WeightSync:
    """Prepare both ends; for NCCL, learner and workers form a group at the first sync.

    Args:
        config: which transport is asked for, and its limits.
        learner: the ranks.
        engines: the engines, which have started.
        folder: where files of weights go, if the transport needs some.
        canary: sequences on which every sync is checked.
        tell: takes a line with the transport and the reason for it.
    """
    spec = await _spec(config, learner, engines, engines.sink.members, folder, tell)

    async def regroup(members: frozenset[int]) -> None:
        nonlocal spec
        if spec.transport == "nccl":
            await _form_group(config, learner, engines, spec)
            return
        before = spec.transport
        # An engine that was started again may be on another node than before.
        spec = await _spec(config, learner, engines, members, folder, tell, before)
        if spec.transport != before:
            await learner.open_sync(spec)

    sync = WeightSync(
        source=learner,
        sink=engines.sink,
        buckets=await learner.open_sync(spec),
        collective=spec.transport == "nccl",
        regroup=regroup,
        deadline_s=config.sync.deadline_s,
        canary=canary,
        tolerance=config.canary_tolerance,
    )
    if sync.collective:
        await sync.prepare()
    return sync


async def _spec(
    config: RunConfig,
    learner: LearnerGroup,
    engines: GenerationPool,
    members: frozenset[int],
    folder: str,
    tell: Callable[[str], None],
    before: Transport | None = None,
) -> SyncSpec:
    """Choose the transport for these engines where they are now, and tell it if it is a new one."""

    async def node(engine: int) -> str | None:
        try:
            return await engines.engines[engine].node()
        except EngineDied:
            return None

    home = await learner.node()
    found = await asyncio.gather(*map(node, sorted(members)))
    others = len({*found} - {home, None})
    transport = transport_of(config, one_node=not others)
    if transport != before:
        where = f"on {others} other node(s) than" if others else "on the node of"
        tell(f"weights travel by {transport}: there are engines {where} the learner's first rank")
    return SyncSpec(transport=transport, bucket_bytes=config.sync.bucket_mib << 20, folder=folder)


async def _form_group(
    config: RunConfig, learner: LearnerGroup, engines: GenerationPool, spec: SyncSpec
) -> None:
    """Bring the learner and all engines that take part into a new NCCL group."""
    host, port = await learner.address()
    workers = config.generation.tensor_parallel
    size = 1 + workers * len(engines.sink.members)
    await learner.open_sync(replace(spec, port=port, world_size=size))
    # At the same time: each end waits until all members of the group are there.
    await asyncio.gather(learner.join_sync(host), engines.sink.join_nccl(host, port, workers))
