"""Tasks of asyncio in tests."""

from __future__ import annotations

import asyncio


async def settle() -> None:
    """Let every task that can go on do so."""
    for _ in range(10):
        await asyncio.sleep(0)
