"""Seconds of a weight sync."""

from __future__ import annotations

from typing import Final

from rlsys.planning.cards import Card
from rlsys.planning.shape import ModelShape
from rlsys.planning.time import Stage
from rlsys.weights import Transport

IPC_SYNC: Final = (0.09, 65e9)
"""Seconds of a weight sync on a shared card, however small the weights (export, pause, canary and
round trips), and bytes per second on top: 1.0 GB in 0.10 s and 3.1 GB in 0.13 to 0.15 s
(benchmarks/results/plan_check_H200.json)."""
NCCL_SYNC: Final = (0.05, 65e9)
"""The same between cards: 3.1 GB in 0.09 s on two H200 (plan_check_H200_session_5.json). One size
was measured; the rate is that of IPC_SYNC."""
HOST_SYNC: Final = (0.16, 1.0e9)
"""The same through memory of the host: files, or Ray's object store."""
HOST_LINK: Final = 10e9
"""Bytes per second of a copy in the host's memory."""


def sync_stage(shape: ModelShape, itemsize: int, transport: Transport, card: Card) -> Stage:
    """Return the weight sync of a step; its floor is the weights over the link at full rate."""
    sent = shape.parameters * itemsize
    link = {"ipc": card.bandwidth / 2, "nccl": card.link}.get(transport, HOST_LINK)
    fixed_s, rate = {"ipc": IPC_SYNC, "nccl": NCCL_SYNC}.get(transport, HOST_SYNC)
    spent = sent / rate
    return Stage(
        name="weight sync",
        seconds=fixed_s + spent,
        bound="link" if spent > fixed_s else "host",
        card_s=sent / link,
        floor_s=sent / link,
    )
