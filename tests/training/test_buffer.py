"""The staleness bound holds for every order in which groups finish."""

import asyncio
import random

from finished_groups import group
from hypothesis import given, settings
from hypothesis import strategies as st

from rlsys.training.buffer import GroupBuffer


async def simulate(staleness: int, per_step: int, steps: int, seed: int) -> list[list[int]]:
    """Run producers with random delays; return, per step, the admission versions of its groups."""
    rng = random.Random(seed)
    buffer = GroupBuffer((staleness + 1) * per_step)
    version = 0

    async def grow(ticket: int, admitted_at: int) -> None:
        for _ in range(rng.randrange(8)):
            await asyncio.sleep(0)
        await buffer.finish(ticket, group(ticket, version=admitted_at))

    async def produce() -> None:
        async with asyncio.TaskGroup() as tasks:
            while True:
                ticket = await buffer.admit()
                tasks.create_task(grow(ticket, version))

    producer = asyncio.create_task(produce())
    taken = []
    for step in range(steps):
        groups = await buffer.take(per_step)
        tickets = range(step * per_step, (step + 1) * per_step)
        assert [g.report.index for g in groups] == list(tickets)
        taken.append([g.report.versions[0] for g in groups if g.report.versions is not None])
        for _ in range(rng.randrange(5)):
            await asyncio.sleep(0)
        version = step + 1
        await buffer.release(per_step)
    producer.cancel()
    return taken


@settings(max_examples=60, deadline=None)
@given(
    staleness=st.integers(0, 4),
    per_step=st.integers(1, 5),
    seed=st.integers(0, 10_000),
)
def test_staleness_never_exceeds_the_bound(staleness: int, per_step: int, seed: int) -> None:
    taken = asyncio.run(simulate(staleness, per_step, steps=7, seed=seed))
    worst = max(step - min(versions) for step, versions in enumerate(taken))
    assert worst <= staleness
    if staleness == 0:
        assert all(set(versions) == {step} for step, versions in enumerate(taken))


def test_a_larger_bound_is_used() -> None:
    taken = asyncio.run(simulate(2, 2, steps=8, seed=1))
    assert max(step - min(versions) for step, versions in enumerate(taken)) == 2


def test_finished_groups_are_those_not_taken() -> None:
    async def scenario() -> dict[int, int]:
        buffer = GroupBuffer(4, start=10)
        for _ in range(4):
            await buffer.admit()
        for ticket in (11, 10, 13):
            await buffer.finish(ticket, group(ticket, version=0))
        assert [g.report.index for g in await buffer.take(1)] == [10]
        return {ticket: g.report.index for ticket, g in buffer.finished().items()}

    assert asyncio.run(scenario()) == {11: 11, 13: 13}
