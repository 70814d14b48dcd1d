"""Plans are pure numbers: nothing lost, nothing twice, the same number of rows on every rank."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.plan import OptimizerStep, RankPlan, make_plan, row_width
from rlsys.errors import TrainingError

sizes_strategy = st.lists(
    st.lists(st.tuples(st.integers(1, 90), st.integers(0, 20)), max_size=5), min_size=1, max_size=12
).filter(lambda sizes: any(trained for group in sizes for _, trained in group))


@given(sizes_strategy, st.integers(1, 4), st.integers(1, 4))
def test_every_sample_once_in_rows_that_hold_it(
    sizes: list[list[tuple[int, int]]], ranks: int, optimizer_steps: int
) -> None:
    plans = make_plan(sizes, row_tokens=32, ranks=ranks, optimizer_steps=optimizer_steps)

    assert len(plans) == ranks
    seen: list[tuple[int, int]] = []
    for shares in zip(*(plan.steps for plan in plans), strict=True):
        assert len({len(share.rows) for share in shares}) == 1
        places = []
        for plan, share in zip(plans, shares, strict=True):
            for row in share.rows:
                here = [(plan.groups[g], s) for g, s in row]
                assert sum(sizes[g][s][0] for g, s in here) <= plan.row_tokens
                places += here
        assert {share.episodes for share in shares} == {len(places)}
        trained = sum(sizes[g][s][1] for g, s in places)
        assert {share.trained_tokens for share in shares} == {trained}
        assert trained > 0
        seen += places
    assert len(seen) == len(set(seen))
    missing = {(g, s) for g in range(len(sizes)) for s in range(len(sizes[g]))} - set(seen)
    assert not any(sizes[g][s][1] for g, s in missing)
    for plan in plans:
        used = {g for step in plan.steps for row in step.rows for g, _ in row}
        assert used == set(range(len(plan.groups)))


def test_worked_example() -> None:
    sizes = [[(6, 2)], [(5, 3), (4, 1)]]
    step = {"episodes": 3, "trained_tokens": 6}

    first, second = make_plan(sizes, row_tokens=10, ranks=2, optimizer_steps=1)

    assert first == RankPlan(  # the longer row; this rank's only group is number 1 of the batch
        groups=(1,), row_tokens=10, steps=(OptimizerStep(rows=(((0, 0), (0, 1)),), **step),)
    )
    assert second == RankPlan(
        groups=(0,), row_tokens=10, steps=(OptimizerStep(rows=(((0, 0),),), **step),)
    )


def test_optimizer_steps_take_consecutive_groups() -> None:
    sizes = [[(3, 1)], [(3, 1)], [(3, 2)], [(3, 2)]]
    (plan,) = make_plan(sizes, row_tokens=8, ranks=1, optimizer_steps=2)
    assert [step.rows for step in plan.steps] == [(((0, 0), (1, 0)),), (((2, 0), (3, 0)),)]
    assert [step.trained_tokens for step in plan.steps] == [2, 4]


def test_rows_grow_in_coarse_steps_until_the_longest_sample_fits() -> None:
    (plan,) = make_plan([[(33, 1)]], row_tokens=8, ranks=1, optimizer_steps=1)
    assert plan.row_tokens == 128
    # Four samples of 1,644 tokens fill 6,576 of 8,192 tokens.
    (plan,) = make_plan([[(1644, 1)]] * 64, row_tokens=8192, ranks=1, optimizer_steps=1)
    assert (plan.row_tokens, len(plan.steps[0].rows)) == (6656, 16)
    assert [row_width(n, 1024) for n in (900, 1024, 1025, 2049, 10_020, 16_384, 16_385)] == [
        *(1024, 1024, 1152, 2304, 10_240, 16_384, 18_432)
    ]
    widths = {row_width(n, 1) for n in range(4096, 8192)}
    assert len(widths) == 9  # 4,096 itself, then steps of 512
    assert all(row_width(n, 1) - n < n / 8 + 128 for n in range(1, 20_000))


def test_nothing_to_learn_is_an_error() -> None:
    with pytest.raises(TrainingError, match=r"batch of 2 groups has no trained token.*ACTOR_LOGS"):
        make_plan([[], [(5, 0)]], row_tokens=8, ranks=1, optimizer_steps=1)


def test_plans_travel() -> None:
    plans = make_plan([[(6, 2)]], row_tokens=10, ranks=1, optimizer_steps=1)
    assert pickle.loads(pickle.dumps(plans)) == plans
