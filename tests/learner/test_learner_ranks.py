"""Two ranks behind Ray: every ZeRO stage trains alike; the group is one object to its driver."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from learner.group import LearnerGroup
from learner.plan import RankPlan, make_plan
from learner.spec import LearnerSpec
from learner.worker import LearnerWorker
from rlsys.config import LearnerConfig, LoraConfig, LossConfig, OptimizerConfig
from rlsys.errors import TrainingError
from rlsys.types import Sample

pytestmark = pytest.mark.slow

Groups = Sequence[tuple[Sample, ...]]
OPTIONS = {
    "num_cpus": 1,
    "runtime_env": {"env_vars": {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}},
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A Ray of two cores, to whose workers the functions of this module travel by value."""
    import sys

    import ray

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def make_spec(
    model_path: str,
    ranks: int,
    objective: Literal["policy", "nll", "rpo"] = "policy",
    **config: Any,
) -> LearnerSpec:
    optimizer = OptimizerConfig(learning_rate=3e-3, max_grad_norm=0.5)
    settings = {"row_tokens": 64, "micro_batch_rows": 1, **config}
    return LearnerSpec(
        model_path=model_path,
        dtype="float32",
        seed=0,
        config=LearnerConfig(ranks=ranks, optimizer=optimizer, **settings),
        # Normalised advantages need numbers of all ranks.
        loss=LossConfig(aggregation="sequence_mean", normalise_advantages=True),
        temperature=0.8,
        objective=objective,
        total_steps=5,
    )


def five_steps(worker: LearnerWorker, plan: RankPlan, batch: Groups) -> list[list[float]]:
    """Losses and gradient norms of five steps on the same batch."""
    steps = [worker.step(plan, *batch) for _ in range(5)]
    return [[step[name] for step in steps] for name in ("loss", "grad_norm")]


def sweep(
    _: LearnerWorker, specs: list[LearnerSpec], plan: RankPlan, batch: Groups
) -> list[list[list[float]]]:
    """Run in a rank's process, which has joined the group: all stages, one after the other."""
    results = []
    for spec in specs:
        worker = LearnerWorker(spec)
        worker.setup("unused: the ranks have met", 0)
        results.append(five_steps(worker, plan, batch))
    return results


@dataclasses.dataclass
class Group:
    """A group in the object store, as a step takes it."""

    samples: Any
    sizes: list[tuple[int, int]]


async def start(spec: LearnerSpec) -> tuple[LearnerGroup, list[Any]]:
    """A learner, and the Ray handles of its ranks for what only a test asks of them."""
    group = await LearnerGroup.start(spec, [OPTIONS] * spec.config.ranks)
    return group, group.actors


def sizes(groups: Groups) -> list[list[tuple[int, int]]]:
    return [[(s.num_tokens, s.num_trained) for s in group] for group in groups]


def test_all_stages_and_ranks_give_the_same_five_steps(
    cluster: None, model_path: str, groups: Groups, tmp_path: Path
) -> None:
    async def run() -> tuple[Any, list[Any]]:
        two, ranks = await start(make_spec(model_path, 2))
        try:
            plans = make_plan(sizes(groups), row_tokens=64, ranks=2, optimizer_steps=1)
            pairs = await asyncio.gather(
                *(
                    actor.__ray_call__.remote(
                        sweep,
                        [
                            dataclasses.replace(make_spec(model_path, 2, zero_stage=s), rank=rank)
                            for s in range(4)
                        ],
                        plans[rank],
                        [groups[g] for g in plans[rank].groups],
                    )
                    for rank, actor in enumerate(ranks)
                )
            )
            await check_group(two, groups, tmp_path)
        finally:
            await two.close()
        one, (actor,) = await start(make_spec(model_path, 1))
        (plan,) = make_plan(sizes(groups), row_tokens=64, ranks=1, optimizer_steps=1)
        specs = [make_spec(model_path, 1, zero_stage=s, micro_batch_rows=8) for s in range(4)]
        single = await actor.__ray_call__.remote(sweep, specs, plan, groups)
        await one.close()
        return single, pairs

    single, (first, second) = asyncio.run(run())
    assert first == second
    curves = np.array([*single, *first])  # [8, losses and norms, 5]
    np.testing.assert_allclose(curves, np.broadcast_to(curves[0], curves.shape), atol=1e-4)
    np.testing.assert_allclose(curves[:, :, 0], curves[:1, :, 0].repeat(8, 0), rtol=1e-5, atol=1e-7)
    assert curves[0, 0, -1] < curves[0, 0, 0] - 0.1


def test_pairs_with_adapters_on_two_ranks(cluster: None, model_path: str, pairs: Groups) -> None:
    """ZeRO 0 and 3 on two ranks against one rank; rows are dealt so that one rank has more."""
    settings: dict[str, Any] = {"objective": "rpo", "lora": LoraConfig(rank=4)}

    async def run(ranks: int, stages: Sequence[int]) -> list[Any]:
        group, actors = await start(make_spec(model_path, ranks))
        plans = make_plan(sizes(pairs), row_tokens=64, ranks=ranks, optimizer_steps=1)
        specs = [make_spec(model_path, ranks, zero_stage=s, **settings) for s in stages]
        try:
            return await asyncio.gather(
                *(
                    actor.__ray_call__.remote(
                        sweep,
                        [dataclasses.replace(spec, rank=rank) for spec in specs],
                        plans[rank],
                        [pairs[g] for g in plans[rank].groups],
                    )
                    for rank, actor in enumerate(actors)
                )
            )
        finally:
            await group.close()

    first, second = asyncio.run(run(2, [0, 3]))
    ((single,),) = asyncio.run(run(1, [1]))
    assert first == second
    for curves in first:
        np.testing.assert_allclose(curves, single, atol=1e-4)
    assert single[0][-1] < single[0][0] - 1e-3


async def check_group(group: LearnerGroup, groups: Groups, tmp_path: Path) -> None:
    """Train, save, go back, export; a batch that is broken on one rank is skipped on both."""
    import ray

    async def step(batch: Groups) -> dict[str, float]:
        refs = [ray.put(samples) for samples in batch]
        return await group.step([Group(*pair) for pair in zip(refs, sizes(batch), strict=True)])

    sequences = [np.arange(7, dtype=np.int32)]
    await group.save(tmp_path / "start")
    start = await group.sequence_logprobs(sequences)
    metrics = await step(groups)
    assert metrics["learner/tokens_trained"] == sum(s.num_trained for g in groups for s in g)
    assert metrics["learner/tokens_packed"] == sum(s.num_tokens for g in groups for s in g)
    trained = await group.sequence_logprobs(sequences)
    assert np.abs(trained[0] - start[0]).max() > 1e-3
    await group.export(tmp_path / "export")
    assert (tmp_path / "export" / "model.safetensors").is_file()

    bad = [*groups[:-1], tuple(infinite(sample) for sample in groups[-1][:1])]
    assert (await step(bad))["skipped"] == 1.0
    np.testing.assert_array_equal((await group.sequence_logprobs(sequences))[0], trained[0])
    await group.load(tmp_path / "start")
    np.testing.assert_array_equal((await group.sequence_logprobs(sequences))[0], start[0])
    await step(bad)
    await step(bad)
    with pytest.raises(TrainingError, match="step 3 and the 2 before it"):
        await step(bad)


def infinite(sample: Sample) -> Sample:
    advantages = [None if a is None else a * np.float32("inf") for a in sample.advantages]
    return dataclasses.replace(sample, advantages=tuple(advantages))
