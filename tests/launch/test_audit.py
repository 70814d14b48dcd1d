"""The disagreement of two graders as numbers of one step."""

import asyncio

from ray.exceptions import RayActorError

from rlsys.launch.audit import GradingAudit


def test_the_numbers_are_those_since_the_last_step() -> None:
    totals: list[dict[str, int] | None] = []

    async def counts() -> dict[str, int]:
        found = totals.pop(0)
        if found is None:
            raise RayActorError
        return found

    def total(audited: int, disagreed: int) -> dict[str, int]:
        return {"graded": 99, "audited": audited, "disagreed": disagreed}

    audit = GradingAudit([counts, counts])

    def step(*found: dict[str, int] | None) -> dict[str, float]:
        totals[:] = found
        return asyncio.run(audit.metrics())

    assert step(total(0, 0), total(0, 0)) == {"grading/audited": 0.0}
    assert step(total(6, 1), total(2, 1)) == {"grading/audited": 8.0, "grading/disagreed": 0.25}
    # One actor does not answer, and then it was started again and counts from 0.
    assert step(None, total(4, 1)) == {"grading/audited": 2.0, "grading/disagreed": 0.0}
    assert step(total(2, 2), total(4, 1)) == {"grading/audited": 2.0, "grading/disagreed": 1.0}
