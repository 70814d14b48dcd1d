"""The staleness bound holds for every order in which groups finish."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from finished_groups import group
from hypothesis import given, settings
from hypothesis import strategies as st

from rlsys.training.buffer import GroupBuffer
from rlsys.training.protocols import FinishedGroup


async def simulate(
    staleness: int, per_step: int, steps: int, seed: int, most_dropped: int = 0
) -> list[list[int]]:
    """Run producers with random delays; return, per step, the admission versions of its groups.

    Every third group on average has no signal.
    """
    rng = random.Random(seed)
    buffer = GroupBuffer(per_step, staleness, most_dropped=most_dropped)
    version = 0

    async def grow(ticket: int, admitted_at: int) -> None:
        for _ in range(rng.randrange(8)):
            await asyncio.sleep(0)
        finished = group(ticket, version=admitted_at)
        report = replace(finished.report, signal=rng.random() > 1 / 3)
        await buffer.finish(ticket, replace(finished, report=report))

    async def produce() -> None:
        async with asyncio.TaskGroup() as tasks:
            while True:
                ticket = await buffer.admit()
                tasks.create_task(grow(ticket, version))

    producer = asyncio.create_task(produce())
    taken: list[list[int]] = []
    first = 0
    for step in range(steps):
        groups = await buffer.take()
        assert len(groups.kept) == per_step
        assert [g.report.index for g in groups.all] == list(range(first, buffer.next))
        first = buffer.next
        taken.append([g.report.versions[0] for g in groups.all if g.report.versions is not None])
        for _ in range(rng.randrange(5)):
            await asyncio.sleep(0)
        version = step + 1
        await buffer.release()
    producer.cancel()
    return taken


@settings(max_examples=60, deadline=None)
@given(
    staleness=st.integers(0, 4),
    per_step=st.integers(1, 5),
    seed=st.integers(0, 10_000),
    most_dropped=st.integers(0, 6),
)
def test_staleness_never_exceeds_the_bound(
    staleness: int, per_step: int, seed: int, most_dropped: int
) -> None:
    taken = asyncio.run(simulate(staleness, per_step, 7, seed, most_dropped))
    worst = max(step - min(versions) for step, versions in enumerate(taken))
    assert worst <= staleness
    if staleness == 0:
        assert all(set(versions) == {step} for step, versions in enumerate(taken))


def test_a_larger_bound_is_used() -> None:
    taken = asyncio.run(simulate(2, 2, steps=8, seed=1))
    assert max(step - min(versions) for step, versions in enumerate(taken)) == 2


def test_finished_groups_are_those_not_taken() -> None:
    async def scenario() -> dict[int, int]:
        buffer = GroupBuffer(1, 3, start=10)
        for _ in range(4):
            await buffer.admit()
        for ticket in (11, 10, 13):
            await buffer.finish(ticket, group(ticket, version=0))
        assert [g.report.index for g in (await buffer.take()).kept] == [10]
        return {ticket: g.report.index for ticket, g in buffer.finished().items()}

    assert asyncio.run(scenario()) == {11: 11, 13: 13}


def plain(index: int, *, signal: bool) -> FinishedGroup:
    whole = group(index, version=0)
    return replace(whole, report=replace(whole.report, signal=signal))


async def taken_by_steps(
    signals: Sequence[bool], per_step: int, most_dropped: int, *, start: int = 0
) -> list[tuple[list[int], list[int]]]:
    """Finish all groups, last one first; return what complete steps keep and drop."""
    buffer = GroupBuffer(per_step, len(signals), start=start, most_dropped=most_dropped)
    tickets = [await buffer.admit() for _ in range(start, len(signals))]
    for ticket in reversed(tickets):
        await buffer.finish(ticket, plain(ticket, signal=signals[ticket]))
    steps: list[tuple[list[int], list[int]]] = []
    while True:
        try:
            async with asyncio.timeout(0):
                step = await buffer.take()
        except TimeoutError:
            return steps
        steps.append(([g.report.index for g in step.kept], [g.report.index for g in step.dropped]))


@pytest.mark.parametrize(
    ("signals", "most_dropped", "expected"),
    [
        # No dynamic sampling: signals play no part.
        ("1001", 0, [([0, 1], []), ([2, 3], [])]),
        ("101011", 2, [([0, 2], [1]), ([4, 5], [3])]),
        # Two groups are dropped; after that the step keeps what comes.
        ("0000101", 2, [([2, 3], [0, 1]), ([4, 6], [5])]),
        # A group without signal after the last kept one belongs to the next step.
        ("110011", 1, [([0, 1], []), ([3, 4], [2])]),
        ("1000", 1, [([0, 2], [1])]),
    ],
)
def test_groups_without_signal_are_replaced(
    signals: str, most_dropped: int, expected: list[tuple[list[int], list[int]]]
) -> None:
    flags = [signal == "1" for signal in signals]
    assert asyncio.run(taken_by_steps(flags, 2, most_dropped)) == expected


@settings(max_examples=60, deadline=None)
@given(
    signals=st.lists(st.booleans(), min_size=8, max_size=40),
    per_step=st.integers(1, 4),
    most_dropped=st.integers(0, 5),
    resumed=st.integers(0, 5),
)
def test_a_resumed_buffer_makes_the_same_choices(
    signals: list[bool], per_step: int, most_dropped: int, resumed: int
) -> None:
    whole = asyncio.run(taken_by_steps(signals, per_step, most_dropped))
    for kept, dropped in whole:
        assert len(kept) == per_step
        assert len(dropped) <= most_dropped
        assert not any(signals[ticket] for ticket in dropped)
    settled = [ticket for kept, dropped in whole for ticket in kept + dropped]
    assert sorted(settled) == list(range(len(settled)))
    done = whole[:resumed]
    start = done[-1][0][-1] + 1 if done else 0
    rest = asyncio.run(taken_by_steps(signals, per_step, most_dropped, start=start))
    assert rest == whole[len(done) :]


def test_the_slot_of_a_dropped_group_is_free_at_once() -> None:
    async def scenario() -> tuple[int, int]:
        buffer = GroupBuffer(2, 0, most_dropped=4)
        for _ in range(2):
            await buffer.admit()
        await buffer.finish(1, plain(1, signal=False))
        before = buffer.admitted  # ticket 0 may yet need the step's drops
        await buffer.finish(0, plain(0, signal=True))
        async with asyncio.timeout(1):
            replacement = await buffer.admit()
        return before, replacement

    assert asyncio.run(scenario()) == (2, 2)
