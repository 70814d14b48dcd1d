"""The group as its driver sees it, over ranks written by hand: what a rank that hangs leads to."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from learner.group import LearnerGroup
from rlsys.errors import LearnerDied


class Rank:
    """Answers at once, or never."""

    def __init__(self, *, hangs: bool = False, error: Exception | None = None) -> None:
        self.hangs, self.error = hangs, error

    async def save(self, folder: Any) -> None:
        if self.hangs:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error

    async def answers(self) -> bool:
        return not self.hangs


def group(*ranks: Any) -> LearnerGroup:
    made = LearnerGroup.__new__(LearnerGroup)
    made._ranks, made._call, made._why = list(ranks), None, ""
    return made


def test_a_call_that_hangs_can_be_given_up(tmp_path: Any) -> None:
    async def main() -> None:
        learner = group(Rank(), Rank(hangs=True))
        assert not learner.give_up("no call runs")
        assert not await learner.answers()
        save = asyncio.create_task(learner.save(tmp_path))
        await asyncio.sleep(0)
        assert learner.give_up("rank 1 hangs")
        with pytest.raises(LearnerDied, match="rank 1 hangs"):
            await save
        learner._ranks[1] = group(Rank())._ranks[0]
        await learner.save(tmp_path)
        assert await learner.answers()
        assert not learner.give_up("no call runs")

    asyncio.run(main())


def test_an_error_of_a_rank_stays_what_it_is(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A TimeoutError of a rank's own is no call that was given up."""
    monkeypatch.setattr("learner.group.DEATH_SECONDS", 0.01)
    for error in (TimeoutError("of the store"), ValueError("broken"), LearnerDied("rank 0 died")):
        with pytest.raises(type(error), match=str(error)):
            asyncio.run(group(Rank(error=error), Rank(hangs=True)).save(tmp_path))
