"""Shares of the engines that the driver computes from their totals."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from actors import engine_state
from actors.engine_state import BusyTime, EngineCounts
from rlsys.launch import runner
from rlsys.launch.runner import RayRunner


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


def test_overlapping_requests_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, busy = Clock(), BusyTime()
    monkeypatch.setattr(engine_state, "time", clock)
    first, second = busy.request(), busy.request()
    first.__enter__()
    clock.now += 2
    second.__enter__()
    clock.now += 3
    first.__exit__(None, None, None)
    clock.now += 1
    assert busy.seconds == 6
    second.__exit__(None, None, None)
    clock.now += 10  # idle
    assert busy.seconds == 6


def test_engines_are_busy_for_a_share_of_the_time_between_two_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Pool:
        engines = (None, None)
        busy_s = 3.0

        async def counts(self) -> EngineCounts:
            return EngineCounts(prompt_tokens=8, cached_tokens=2, busy_s=self.busy_s)

    clock, pool = Clock(), Pool()
    monkeypatch.setattr(runner, "time", clock)
    engines: Any = pool
    driver = RayRunner([], engines)
    assert asyncio.run(driver.engine_metrics()) == {"prefix_cache/share": 0.25}
    clock.now, pool.busy_s = 110.0, 8.0  # 5 of 2 * 10 seconds
    assert asyncio.run(driver.engine_metrics())["busy/engines"] == 0.25
    clock.now, pool.busy_s = 120.0, 1.0  # an engine was started again
    assert asyncio.run(driver.engine_metrics())["busy/engines"] == 0.0
