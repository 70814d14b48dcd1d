"""An all-reduce over the places of the learner's ranks: do they reach each other, and how fast?"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Sequence
from typing import Final

import ray

from rlsys.config import LearnerConfig
from rlsys.doctor import Finding, Status
from rlsys.launch.placement import RayOptions
from rlsys.network import interface_variables, interfaces

MIB: Final = {"gloo": 16, "nccl": 256}
"""Size of the tensor."""
ROUNDS: Final = 5
LIMIT_S: Final = 120.0


class ReduceRank:
    """One rank; a plain class, of which `all_reduce` makes Ray actors."""

    def place(self) -> tuple[str, str, int]:
        """Return a description of the place, the address of the node and a free port there."""
        address = ray.util.get_node_ip_address()
        cards = ray.get_gpu_ids()
        card = f" GPU {', '.join(map(str, cards))}" if cards else ""
        with socket.socket() as free:
            free.bind(("", 0))
            return f"{socket.gethostname()}{card}", address, free.getsockname()[1]

    def measure(self, rank: int, ranks: int, host: str, port: int) -> float:
        """Sum a tensor over all ranks; return the seconds of the fastest round."""
        import os

        import torch
        from torch import distributed

        os.environ.update(interface_variables(ray.util.get_node_ip_address(), interfaces()))
        backend = "nccl" if ray.get_gpu_ids() else "gloo"
        distributed.init_process_group(
            backend, init_method=f"tcp://{host}:{port}", rank=rank, world_size=ranks
        )
        device = "cuda" if backend == "nccl" else "cpu"
        tensor = torch.ones(MIB[backend] << 18, device=device)
        seconds = []
        for _ in range(ROUNDS):
            start = time.perf_counter()
            distributed.all_reduce(tensor)
            if backend == "nccl":
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - start)
        right = bool((tensor == ranks**ROUNDS).all())
        distributed.destroy_process_group()
        if not right:
            raise ArithmeticError("the sum is wrong")
        return min(seconds)


async def all_reduce(learner: LearnerConfig, options: Sequence[RayOptions]) -> list[Finding]:
    """Return the map of the ranks and the bandwidth of an all-reduce over them.

    Args:
        learner: settings of the ranks.
        options: Ray options of every rank, which put it into its place.
    """
    actor = ray.remote(ReduceRank)
    ranks = [actor.options(**place).remote() for place in options]
    try:
        async with asyncio.timeout(LIMIT_S):
            places = await asyncio.gather(*(rank.place.remote() for rank in ranks))
            shown = "; ".join(f"{i}: {place}" for i, (place, _, _) in enumerate(places))
            rank_map = Finding("learner ranks", Status.OK, shown)
            if len(ranks) == 1:
                return [rank_map]
            _, host, port = places[0]
            calls = [r.measure.remote(i, len(ranks), host, port) for i, r in enumerate(ranks)]
            seconds = max(await asyncio.gather(*calls))
    except (TimeoutError, ray.exceptions.RayError) as error:
        cause = " ".join(str(error).split())[-300:] or f"no end within {LIMIT_S:g} s"
        remedy = "open all ports between the nodes, and set GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME"
        return [Finding("all-reduce", Status.FAIL, cause, remedy)]
    finally:
        for rank in ranks:
            ray.kill(rank)
    mib = MIB["nccl" if learner.gpus_per_rank else "gloo"]
    # What every link carries in a ring, whatever the number of ranks.
    bandwidth = 2 * (len(ranks) - 1) / len(ranks) * mib / 1024 / seconds
    seen = f"{mib} MiB over {len(ranks)} ranks in {seconds:.3f} s, {bandwidth:.2f} GiB/s per link"
    return [rank_map, Finding("all-reduce", Status.OK, seen)]
