"""A learner with a teacher, real DeepSpeed: what it is told, and where it goes."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import one_rank
import pytest
import torch
from one_rank import Groups, train

from rlsys.config import DistillationConfig, LoraConfig, ModelConfig
from rlsys.types import Sample

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def teacher_path(model_path: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A larger random model over the same vocabulary."""
    from transformers import AutoConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("teacher")
    config = AutoConfig.from_pretrained(model_path)
    config.hidden_size = 96
    torch.manual_seed(1)
    LlamaForCausalLM(config).save_pretrained(folder)
    return str(folder)


def distillation(path: str, coefficient: float = 1.0) -> DistillationConfig:
    return DistillationConfig(teacher=ModelConfig(path=path), coefficient=coefficient)


def without_scores(groups: Groups) -> Groups:
    """The same trees with advantage 0 on every sampled token, as `algorithm.method: distill`."""

    def zero(sample: Sample) -> Sample:
        zeros = (None if a is None else np.zeros_like(a) for a in sample.advantages)
        return dataclasses.replace(sample, advantages=tuple(zeros))

    return [tuple(map(zero, group)) for group in groups]


def path_logprobs(path: str, sample: Sample, temperature: float) -> list[np.ndarray]:
    """Log-probs of every sampled segment, from single paths with transformers alone."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path)
    found = []
    for segment in sample.segments:
        if not segment.kind.sampled:
            continue
        before: list[int] = []
        place, cut = segment.parent, segment.cut
        while place >= 0:
            parent = sample.segments[place]
            before = [*parent.token_ids[:cut].tolist(), *before]
            place, cut = parent.parent, parent.cut
        ids = torch.tensor([[*before, *segment.token_ids.tolist()]])
        with torch.no_grad():
            table = torch.log_softmax(model(ids).logits[0] / temperature, -1)
        rows = range(len(before) - 1, ids.shape[1] - 1)
        found.append(np.array([float(table[r, ids[0, r + 1]]) for r in rows]))
    return found


def test_advantages_are_those_of_single_paths(
    model_path: str, teacher_path: str, groups: Groups
) -> None:
    """A batch with the teacher's advantages written into it trains the same, without a teacher."""
    coefficient, temperature = 0.7, 0.8
    taught = one_rank.start(
        model_path, temperature=temperature, distillation=distillation(teacher_path, coefficient)
    )
    metrics = train(taught, groups)
    gaps: list[float] = []

    def told(sample: Sample) -> Sample:
        policy, teacher = (
            iter(path_logprobs(path, sample, temperature)) for path in (model_path, teacher_path)
        )
        advantages: list[Any] = []
        for given in sample.advantages:
            if given is None:
                advantages.append(None)
                continue
            gap = next(teacher) - next(policy)
            gaps.extend(-gap)
            advantages.append((given + coefficient * gap).astype(np.float32))
        return dataclasses.replace(sample, advantages=tuple(advantages))

    plain = train(
        one_rank.start(model_path, temperature=temperature),
        [tuple(map(told, group)) for group in groups],
    )
    assert metrics["loss"] == pytest.approx(plain["loss"], rel=1e-4)
    assert metrics["grad_norm"] == pytest.approx(plain["grad_norm"], rel=1e-4)
    assert metrics["teacher_kl_mean"] == pytest.approx(np.mean(gaps), rel=1e-4)
    assert "teacher_kl_mean" not in plain


def test_a_teacher_that_is_the_policy_teaches_nothing(model_path: str, groups: Groups) -> None:
    worker = one_rank.start(model_path, distillation=distillation(model_path))
    metrics = train(worker, without_scores(groups))
    assert metrics["teacher_kl_mean"] == pytest.approx(0.0, abs=1e-6)
    assert metrics["grad_norm"] == pytest.approx(0.0, abs=1e-6)


def test_with_adapters_a_checkpoint_holds_no_teacher(
    model_path: str, teacher_path: str, groups: Groups, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {
        "distillation": distillation(teacher_path),
        "lora": LoraConfig(rank=2),
    }
    worker = one_rank.start(model_path, **settings)
    first = train(worker, without_scores(groups))
    assert first["grad_norm"] > 0
    worker.save(tmp_path)
    before = train(worker, without_scores(groups))
    again = one_rank.start(model_path, **settings)
    again.load(tmp_path)
    after = train(again, without_scores(groups))
    assert after["teacher_kl_mean"] == before["teacher_kl_mean"]
    assert after["loss"] == before["loss"]
