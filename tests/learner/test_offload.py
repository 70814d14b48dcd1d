"""An optimizer in the host's memory trains to the same weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import one_rank
import pytest
import torch
from one_rank import Groups, train

from learner.worker import LearnerWorker
from rlsys.types import Sample

pytestmark = pytest.mark.slow


def trained(worker: LearnerWorker, groups: Groups, steps: int) -> tuple[torch.Tensor, list[float]]:
    import deepspeed

    norms = [train(worker, groups)["grad_norm"] for _ in range(steps)]
    parameters = list(worker.module.parameters())
    with deepspeed.zero.GatheredParameters(parameters, enabled=worker.zero_stage == 3):
        return torch.cat([p.detach().flatten().float().clone() for p in parameters]), norms


def broken(sample: Sample) -> Sample:
    """The same tree with infinite advantages."""
    infinite = (None if a is None else a * np.float32("inf") for a in sample.advantages)
    return replace(sample, advantages=tuple(infinite))


@pytest.mark.parametrize(("stage", "dtype"), [(2, "float32"), (3, "bfloat16")])
def test_an_offloaded_optimizer_trains_to_the_same_weights(
    model_path: str,
    groups: Groups,
    tmp_path: Path,
    stage: int,
    dtype: Literal["float32", "bfloat16"],
) -> None:
    common: dict[str, Any] = {"dtype": dtype, "zero_stage": stage, "micro_batch_rows": 2}
    expected, norms = trained(one_rank.start(model_path, **common), groups, 3)
    first = one_rank.start(model_path, offload="cpu", **common)
    _, begun = trained(first, groups, 2)
    assert train(first, [(broken(groups[0][0]),), *groups[1:]])["skipped"] == 1
    first.save(tmp_path / "checkpoint")
    # Whether the optimizer is offloaded may change between two starts.
    second = one_rank.start(model_path, **common)
    second.load(tmp_path / "checkpoint")
    found, ended = trained(second, groups, 1)
    np.testing.assert_allclose([*begun, *ended], norms, rtol=1e-5)
    # Sums in another order may round a weight in bfloat16 to its neighbour.
    relative, absolute = (1e-5, 1e-7) if dtype == "float32" else (2**-7, 1e-6)
    torch.testing.assert_close(found, expected, rtol=relative, atol=absolute)
