"""Lost nodes: Ray takes a node that does not answer for alive until it misses heartbeats."""

from __future__ import annotations

import asyncio
from typing import Final

import ray

LIMIT_S: Final = 60.0


async def lost_nodes_are_known() -> None:
    """Return once every node answers, or Ray knows that it is dead.

    Until then Ray would start a new process of a lost node on that same node.
    """
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    calls = []
    for node in ray.nodes():
        if node["Alive"]:
            place = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            answer = ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=place)(_answer)
            calls.append(asyncio.ensure_future(answer.remote()))
    await asyncio.wait(calls, timeout=LIMIT_S)
    for call in calls:
        if not call.cancel():
            call.exception()  # of a dead node; what is not read would be reported


def _answer() -> None:
    """Run on a node."""
