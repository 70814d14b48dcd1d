"""The group as its driver sees it, over ranks written by hand: what a rank that hangs leads to."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from learner.group import LearnerGroup, StoredSamples
from learner.plan import RankPlan
from learner.spec import LearnerSpec
from rlsys.config import LearnerConfig, LossConfig
from rlsys.errors import LearnerDied


class Rank:
    """Answers at once, or never."""

    def __init__(self, *, hangs: bool = False, error: Exception | None = None) -> None:
        self.hangs, self.error = hangs, error

    async def sequence_logprobs(self, sequences: Any) -> list[Any]:
        if self.hangs:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error
        return []

    async def answers(self) -> bool:
        return not self.hangs


def group(*ranks: Any) -> LearnerGroup:
    made = LearnerGroup.__new__(LearnerGroup)
    made._ranks, made._call, made._why = list(ranks), None, ""
    return made


def test_a_call_that_hangs_can_be_given_up() -> None:
    async def main() -> None:
        learner = group(Rank(), Rank(hangs=True))
        assert not learner.give_up("no call runs")
        assert not await learner.answers()
        call = asyncio.create_task(learner.sequence_logprobs([]))
        await asyncio.sleep(0)
        assert learner.give_up("rank 1 hangs")
        with pytest.raises(LearnerDied, match="rank 1 hangs"):
            await call
        learner._ranks[1] = group(Rank())._ranks[0]
        await learner.sequence_logprobs([])
        assert await learner.answers()
        assert not learner.give_up("no call runs")

    asyncio.run(main())


def test_ranks_that_share_rows_get_the_same_plan() -> None:
    """Four ranks in groups of two, four samples of 10 tokens in rows of 20."""

    class Trained(Rank):
        async def step(self, plan: RankPlan, *samples: Any) -> dict[str, float]:
            self.plan, self.samples = plan, samples
            return {"loss": 0.5}

    async def main() -> dict[str, float]:
        loop = asyncio.get_running_loop()
        names: list[Any] = [loop.create_future() for _ in range(4)]
        return await learner.step([StoredSamples(name, [(10, 5)]) for name in names])

    learner = group(*(Trained() for _ in range(4)))
    learner._spec = LearnerSpec(
        model_path="unused",
        dtype="float32",
        seed=0,
        config=LearnerConfig(ranks=4, sequence_ranks=2, row_tokens=20),
        loss=LossConfig(constant=16),
        temperature=1.0,
        objective="policy",
        total_steps=1,
    )
    assert asyncio.run(main()) == {"loss": 0.5}
    seen: Any = learner._ranks
    assert [rank.plan.groups for rank in seen] == [(0, 2), (0, 2), (1, 3), (1, 3)]
    assert seen[0].plan == seen[1].plan
    assert seen[2].samples == seen[3].samples


def test_an_error_of_a_rank_stays_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A TimeoutError of a rank's own is no call that was given up."""
    monkeypatch.setattr("learner.group.DEATH_SECONDS", 0.01)
    for error in (TimeoutError("of the store"), ValueError("broken"), LearnerDied("rank 0 died")):
        with pytest.raises(type(error), match=str(error)):
            asyncio.run(group(Rank(error=error), Rank(hangs=True)).sequence_logprobs([]))
