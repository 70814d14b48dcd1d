"""Adapters: what is trained, what the engines get, what is kept on disk."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Literal

import numpy as np
import peft
import pytest
import torch
from forests import ARCHITECTURES, grow, inputs, paths_alone, tiny_model
from one_rank import Groups, start, train
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from learner.logprobs import PolicyModel
from learner.lora import adapters_off, add_adapters
from learner.sync import SyncSpec
from learner.weights import checkpoint_weights, gathered
from learner.worker import LearnerWorker
from rlsys.config import LoraConfig, LossConfig
from rlsys.errors import CheckpointError
from rlsys.types import Sample

LORA = LoraConfig(rank=4, alpha=8.0)
KL = LossConfig(constant=16, kl_coefficient=0.1)
SEQUENCES = [np.arange(5, dtype=np.int32), np.array([7, 3, 1, 1, 9, 30], np.int32)]


def adapted(name: str) -> torch.nn.Module:
    """A tiny model with adapters that already do something."""
    model = tiny_model(name)
    add_adapters(model, LORA)
    for key, parameter in model.named_parameters():
        if ".lora_B." in key:
            torch.nn.init.normal_(parameter, std=0.2)
    return model


def merged_by_peft(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters by the names of the checkpoint; merges in place."""
    for module in model.modules():
        if isinstance(module, peft.tuners.lora.LoraLayer):
            module.merge()
    return {name.replace(".base_layer", ""): p for name, p in model.named_parameters()}


def frozen(worker: LearnerWorker) -> dict[str, torch.Tensor]:
    """Copies of the weights that have adapters."""
    weights = list(checkpoint_weights(worker.module))
    with gathered([weight.base for weight in weights], partitioned=worker.zero_stage == 3):
        assert all(weight.base.grad is None for weight in weights)
        return {weight.name: weight.base.detach().clone() for weight in weights}


def sent(worker: LearnerWorker, folder: Path) -> dict[str, torch.Tensor]:
    """What engines receive."""
    spec = SyncSpec(transport="shm", bucket_bytes=20_000, folder=str(folder))
    plan = worker.open_sync(spec)
    names = [name for bucket in plan for name, _, _ in bucket]
    tensors = {name: t for file in worker.send() for name, t in load_file(file.path).items()}
    assert set(names) == tensors.keys()
    return tensors


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_packed_trees_equal_paths_alone(name: str) -> None:
    """peft leaves tree attention alone: values, and gradients of the adapters only."""
    model = adapted(name)
    policy, forest = PolicyModel(model), grow(seed=1)
    weight_RT = torch.randn(forest.rows.token_ids.shape, generator=torch.manual_seed(2))

    def gradients(logprobs_RT: torch.Tensor) -> dict[str, torch.Tensor]:
        policy.zero_grad()
        (logprobs_RT * weight_RT).sum().backward()
        return {k: p.grad.clone() for k, p in model.named_parameters() if p.grad is not None}

    expected_RT, _ = paths_alone(model, forest, temperature=0.7)
    expected = gradients(expected_RT)
    found_RT, _ = policy(*inputs(forest.rows), temperature=0.7, chunk=64)
    torch.testing.assert_close(found_RT, expected_RT, atol=1e-4, rtol=0)
    found = gradients(found_RT)
    assert found.keys() == expected.keys()
    assert len(found) == 2 * 7 * 2  # factors, projections, layers
    assert all(".lora_" in key for key in found)
    for key, gradient in found.items():
        assert (gradient - expected[key]).norm() <= 1e-4 * expected[key].norm(), key


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_weights_have_the_checkpoints_names_and_pefts_values(name: str) -> None:
    """qwen2 has biases beside its adapted projections."""
    model = adapted(name)
    before = {key: p.detach().clone() for key, p in model.named_parameters()}
    weights = {weight.name: weight.value() for weight in checkpoint_weights(model)}
    assert all(torch.equal(p, before[key]) for key, p in model.named_parameters())

    start_names = [key for key, _ in tiny_model(name).named_parameters()]
    assert list(weights) == start_names
    expected = merged_by_peft(model)
    for key, value in weights.items():
        torch.testing.assert_close(value, expected[key], atol=1e-6, rtol=0)
    changed = sum(not torch.equal(weights[k], p) for k, p in tiny_model(name).named_parameters())
    assert changed == 7 * 2


def test_off_is_the_starting_policy() -> None:
    model, batch = adapted("llama"), inputs(grow(seed=1).rows)
    with torch.no_grad():
        expected_RT, _ = PolicyModel(tiny_model("llama"))(*batch, temperature=1.0, chunk=64)
        on_RT, _ = PolicyModel(model)(*batch, temperature=1.0, chunk=64)
        with adapters_off(model):
            off_RT, _ = PolicyModel(model)(*batch, temperature=1.0, chunk=64)
        again_RT, _ = PolicyModel(model)(*batch, temperature=1.0, chunk=64)
    assert torch.equal(off_RT, expected_RT)
    assert torch.equal(again_RT, on_RT)
    assert (on_RT - off_RT).abs().max() > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_all_stages_train_adapters_alike(
    model_path: str, groups: Groups, dtype: Literal["float32", "bfloat16"]
) -> None:
    """The KL to the start is 0 at the start; the reference is no second copy."""
    curves = []
    for stage in range(4):
        worker = start(
            model_path, lora=LORA, zero_stage=stage, loss=KL, dtype=dtype, micro_batch_rows=2
        )
        before = frozen(worker)
        steps = [train(worker, groups) for _ in range(4)]
        for name, base in frozen(worker).items():
            assert torch.equal(base, before[name])
        assert steps[0]["reference_kl_mean"] == 0.0
        assert steps[-1]["reference_kl_mean"] > 1e-5
        curves.append([[s[k] for k in ("loss", "grad_norm", "reference_kl_mean")] for s in steps])
    assert curves[0][-1][0] < curves[0][0][0] - 0.01
    tolerance = 1e-4 if dtype == "float32" else 0.02
    np.testing.assert_allclose(curves, np.broadcast_to(curves[0], np.shape(curves)), atol=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("stage", [1, 3])
def test_second_optimizer_step_recomputes_alike(
    model_path: str, groups: Groups, stage: int
) -> None:
    """Old log-probs, reference and gradient checkpointing together."""
    seen = [
        train(
            start(
                model_path,
                lora=LORA,
                zero_stage=stage,
                loss=KL,
                gradient_checkpointing=checkpointing,
            ),
            groups,
            2,
        )
        for checkpointing in (False, True)
    ]
    assert seen[0]["ratio_max"] > 1.0001
    for name in ("loss", "grad_norm", "ratio_max", "reference_kl_mean"):
        assert seen[1][name] == pytest.approx(seen[0][name], rel=1e-4, abs=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("stage", [1, 3])
def test_engines_get_merged_weights_and_the_export_is_the_policy(
    model_path: str, groups: Groups, tmp_path: Path, stage: int
) -> None:
    worker = start(model_path, lora=LORA, zero_stage=stage, loss=KL, rate=3e-2)
    start_logprobs = worker.sequence_logprobs(SEQUENCES)
    for _ in range(2):  # the second round finds the state the first one left
        train(worker, groups)
        tensors = sent(worker, tmp_path / "sync")
        worker.export(tmp_path / "export")
    ours = worker.sequence_logprobs(SEQUENCES)
    assert np.abs(ours[0] - start_logprobs[0]).max() > 1e-2

    base = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    assert tensors.keys() == dict(base.named_parameters()).keys()
    adapter = peft.PeftModel.from_pretrained(base, tmp_path / "export" / "adapter")
    whole = adapter.merge_and_unload()
    for name, parameter in whole.named_parameters():
        torch.testing.assert_close(tensors[name], parameter.detach(), atol=1e-6, rtol=0)

    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "export", dtype=torch.float32)
    assert exported.config.tie_word_embeddings
    for model in (exported, whole):
        for ids, expected in zip(SEQUENCES, ours, strict=True):
            path = torch.from_numpy(ids).long()
            logp_TV = torch.log_softmax(model(path[None]).logits[0], -1)[:-1]
            found_T = logp_TV.gather(1, path[1:, None])[:, 0].detach().numpy()
            np.testing.assert_allclose(found_T, expected, atol=1e-5)
    again = start(str(tmp_path / "export"))
    for row, expected in zip(again.sequence_logprobs(SEQUENCES), ours, strict=True):
        np.testing.assert_allclose(row, expected, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "dtype"),
    [(0, "float32"), (1, "bfloat16"), (2, "float32"), (3, "float32"), (3, "bfloat16")],
)
def test_resume_is_exact_and_holds_adapters_only(
    model_path: str, groups: Groups, tmp_path: Path, stage: int, dtype: str
) -> None:
    config: dict[str, Any] = {
        "zero_stage": stage,
        "dtype": dtype,
        "micro_batch_rows": 2,
        "loss": KL,
        "lora": LORA,
    }
    worker = start(model_path, **config)
    train(worker, groups)
    worker.save(tmp_path / "step-1")
    expected = [train(worker, groups)["loss"] for _ in range(3)]

    resumed = start(model_path, **config)
    resumed.load(tmp_path / "step-1")
    assert [train(resumed, groups)["loss"] for _ in range(3)] == expected

    state = torch.load(
        next((tmp_path / "step-1").rglob("*model_states.pt")),
        map_location="cpu",
        weights_only=False,
    )
    assert state["module"]
    assert all(".lora_" in name for name in state["module"])
    assert not state.get("frozen_param_fragments")


@pytest.mark.slow
def test_other_adapters_are_refused(model_path: str, groups: Groups, tmp_path: Path) -> None:
    start(model_path, lora=LORA).save(tmp_path / "start")
    for other in (None, LoraConfig(rank=4, target_modules=("q_proj",)), LoraConfig(rank=2)):
        with pytest.raises(CheckpointError, match=r"and learner\.lora .*resume with the settings"):
            start(model_path, lora=other).load(tmp_path / "start")


def whole_rows(groups: Groups) -> Groups:
    """The same trees as supervised ones: advantage 1 everywhere."""

    def ones(sample: Sample) -> Sample:
        advantages = tuple(None if a is None else np.ones_like(a) for a in sample.advantages)
        return dataclasses.replace(sample, advantages=advantages)

    return [tuple(ones(sample) for sample in group) for group in groups]


@pytest.mark.slow
def test_supervised_rows_train_adapters(model_path: str, groups: Groups) -> None:
    loss = LossConfig(aggregation="token_mean")
    worker = start(model_path, lora=LORA, objective="nll", loss=loss, rate=1e-2)
    losses = [train(worker, whole_rows(groups))["loss"] for _ in range(12)]
    assert losses[-1] < losses[0] - 0.2
