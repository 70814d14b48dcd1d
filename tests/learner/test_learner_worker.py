"""One rank in this process, real DeepSpeed: the objective, precision, faults, files."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import one_rank
import pytest
import torch
from one_rank import Groups, train

from learner.sync import SyncSpec
from learner.worker import LearnerWorker
from rlsys.config import LossConfig
from rlsys.errors import CheckpointError, TrainingError
from rlsys.types import Sample

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def start(model_path: str) -> Callable[..., LearnerWorker]:
    """Start workers one after the other in this process."""

    def start_worker(*, path: str = model_path, **settings: Any) -> LearnerWorker:
        return one_rank.start(path, **settings)

    return start_worker


def weights(worker: LearnerWorker) -> torch.Tensor:
    """All parameters in one vector, whatever the ZeRO stage."""
    import deepspeed

    parameters = list(worker.module.parameters())
    with deepspeed.zero.GatheredParameters(parameters, enabled=worker.zero_stage == 3):
        return torch.cat([p.detach().flatten().float().clone() for p in parameters])


def broken(groups: Groups) -> Groups:
    """The same batch with one infinite advantage."""
    first, *others = groups[-1]
    advantages = [None if a is None else a * np.float32("inf") for a in first.advantages]
    return [*groups[:-1], (dataclasses.replace(first, advantages=tuple(advantages)), *others)]


@pytest.mark.parametrize("aggregation", ["constant", "token_mean", "sequence_mean"])
def test_gradients_do_not_depend_on_the_split(
    start: Callable[..., LearnerWorker], groups: Groups, aggregation: str
) -> None:
    loss = LossConfig(aggregation=aggregation, constant=16, entropy_coefficient=0.01)
    seen = []
    for rows in (1, 2, 8):
        worker = start(zero_stage=0, micro_batch_rows=rows, loss=loss)
        metrics = train(worker, groups)
        state = worker.engine.optimizer.state
        moments = [state[p]["exp_avg"].flatten() for p in worker.module.parameters()]
        seen.append((metrics["loss"], metrics["grad_norm"], torch.cat(moments)))
    for value, norm, moments in seen[1:]:
        assert value == pytest.approx(seen[0][0], rel=1e-5, abs=1e-7)
        assert norm == pytest.approx(seen[0][1], rel=1e-5)
        torch.testing.assert_close(moments, seen[0][2], rtol=1e-5, atol=1e-7)


def test_metrics_of_a_step(start: Callable[..., LearnerWorker], groups: Groups) -> None:
    metrics = train(start(micro_batch_rows=2), groups)
    samples = [sample for group in groups for sample in group]
    assert metrics["tokens_trained"] == sum(s.num_trained for s in samples)
    assert metrics["tokens_packed"] == sum(s.num_tokens for s in samples)
    assert 0 < metrics["padding_share"] < 0.5
    assert metrics["tflops"] > 0
    assert "mfu" not in metrics  # a CPU has no entry in the data sheets
    assert metrics["learning_rate"] == 3e-3
    assert metrics["skipped"] == 0
    assert metrics["ratio_mean"] == metrics["ratio_max"] == 1.0
    assert 0 < metrics["engine_gap_mean"] <= metrics["engine_gap_max"] < 2
    assert 3 < metrics["entropy_mean"] <= np.log(32) + 1e-6


def test_normalised_advantages_have_no_unit(
    start: Callable[..., LearnerWorker], groups: Groups
) -> None:
    def times(factor: float) -> Groups:
        def scaled(sample: Sample) -> Sample:
            advantages = (None if a is None else a * np.float32(factor) for a in sample.advantages)
            return dataclasses.replace(sample, advantages=tuple(advantages))

        return [tuple(map(scaled, group)) for group in groups]

    loss = LossConfig(constant=16, normalise_advantages=True)
    one, eight = (train(start(loss=loss), times(factor)) for factor in (1.0, 8.0))
    assert eight["loss"] == pytest.approx(one["loss"], rel=1e-5)
    assert eight["grad_norm"] == pytest.approx(one["grad_norm"], rel=1e-5)
    assert eight["advantage_scale"] == pytest.approx(one["advantage_scale"] / 8, rel=1e-5)
    plain = train(start(), times(one["advantage_scale"]))
    assert plain["loss"] == pytest.approx(one["loss"], rel=1e-5)
    assert "advantage_scale" not in plain


def test_whitened_advantages_have_mean_zero(
    start: Callable[..., LearnerWorker], groups: Groups
) -> None:
    loss = LossConfig(constant=16, normalise_advantages="whiten")
    whitened = train(start(loss=loss), groups)
    shift, scale = whitened["advantage_shift"], whitened["advantage_scale"]
    assert shift != 0

    def by_hand(sample: Sample) -> Sample:
        advantages = (
            None if a is None else (a - np.float32(shift)) * np.float32(scale)
            for a in sample.advantages
        )
        return dataclasses.replace(sample, advantages=tuple(advantages))

    plain = train(start(), [tuple(map(by_hand, group)) for group in groups])
    assert plain["loss"] == pytest.approx(whitened["loss"], rel=1e-5)
    assert plain["grad_norm"] == pytest.approx(whitened["grad_norm"], rel=1e-5)


def test_kl_in_the_reward_acts_once_the_policy_has_moved(
    start: Callable[..., LearnerWorker], groups: Groups
) -> None:
    free = start()
    in_reward = start(loss=LossConfig(constant=16, kl_coefficient=5.0, kl_in="reward"))
    first = train(free, groups), train(in_reward, groups)
    assert first[1]["reference_kl_mean"] == pytest.approx(0.0, abs=1e-6)
    assert first[1]["grad_norm"] == pytest.approx(first[0]["grad_norm"], rel=1e-4)
    second = train(free, groups), train(in_reward, groups)
    assert second[1]["reference_kl_mean"] > 1e-6
    assert second[1]["grad_norm"] != pytest.approx(second[0]["grad_norm"], rel=1e-3)


def test_learning_rate_zero_changes_nothing(
    start: Callable[..., LearnerWorker], groups: Groups
) -> None:
    worker = start(rate=0.0, loss=LossConfig(constant=16, kl_coefficient=0.1))
    before = weights(worker)
    seen = [train(worker, groups, optimizer_steps=2) for _ in range(3)]
    assert torch.equal(weights(worker), before)
    for metrics in seen:
        assert metrics["engine_gap_mean"] == seen[0]["engine_gap_mean"]
        assert metrics["ratio_max"] == pytest.approx(1.0, abs=1e-6)
        assert metrics["reference_kl_mean"] == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("stage", [1, 3])
def test_second_optimizer_step_sees_the_old_policy(
    start: Callable[..., LearnerWorker], groups: Groups, stage: int
) -> None:
    config = {"zero_stage": stage, "loss": LossConfig(constant=16, kl_coefficient=0.1)}
    plain = train(start(**config), groups, optimizer_steps=2)
    assert plain["ratio_max"] > 1.001
    assert plain["reference_kl_mean"] > 1e-6
    for layers in (True, 1):
        again = train(start(**config, gradient_checkpointing=layers), groups, optimizer_steps=2)
        for name in ("loss", "grad_norm", "ratio_max", "reference_kl_mean"):
            assert again[name] == pytest.approx(plain[name], rel=1e-4), layers


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_bfloat16_learns_like_float32(
    start: Callable[..., LearnerWorker], groups: Groups, stage: int
) -> None:
    curves = []
    for dtype in ("float32", "bfloat16"):
        worker = start(
            dtype=dtype,
            objective="nll",
            zero_stage=stage,
            micro_batch_rows=2,
            loss=LossConfig(aggregation="token_mean"),
        )
        curves.append([train(worker, groups)["loss"] for _ in range(12)])
    assert curves[0][-1] < curves[0][0] - 0.5
    assert curves[1] == pytest.approx(curves[0], abs=0.02)


def test_gradients_added_without_copies_give_the_same_weights(
    start: Callable[..., LearnerWorker], groups: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What DeepSpeed does by itself, and what learner.engine makes of it."""
    found = []
    for _ in range(2):
        worker = start(dtype="bfloat16", micro_batch_rows=1)
        train(worker, groups)
        assert all(weight.grad is None for weight in worker.module.parameters())
        found.append(weights(worker))
        monkeypatch.setattr("learner.engine._add_without_copies", lambda optimizer: None)
    assert torch.equal(*found)


@pytest.mark.parametrize(
    ("stage", "dtype"),
    [*((stage, "float32") for stage in range(4)), *((stage, "bfloat16") for stage in range(1, 4))],
)
def test_a_broken_step_leaves_no_trace(
    start: Callable[..., LearnerWorker], groups: Groups, stage: int, dtype: str
) -> None:
    def run(batches: list[Groups]) -> tuple[torch.Tensor, list[dict[str, float]]]:
        worker = start(zero_stage=stage, dtype=dtype, micro_batch_rows=2)
        metrics = [train(worker, batch) for batch in batches]
        return weights(worker), metrics

    clean, _ = run([groups, groups])
    mended, metrics = run([groups, broken(groups), groups])

    assert [m["skipped"] for m in metrics] == [0.0, 1.0, 0.0]
    assert [m["skipped_in_row"] for m in metrics] == [0.0, 1.0, 0.0]
    assert "loss" not in metrics[1]
    assert torch.equal(mended, clean)


def test_three_broken_steps_stop_the_run(
    start: Callable[..., LearnerWorker], groups: Groups
) -> None:
    worker = start()
    train(worker, broken(groups))
    train(worker, broken(groups))
    with pytest.raises(TrainingError, match=r"step 3 and the 2 before.*smaller than 0\.003"):
        train(worker, broken(groups))


@pytest.mark.parametrize(("stage", "dtype"), [(0, "float32"), (1, "bfloat16"), (3, "float32")])
def test_resume_is_exact(
    start: Callable[..., LearnerWorker], groups: Groups, tmp_path: Path, stage: int, dtype: str
) -> None:
    config = {"zero_stage": stage, "dtype": dtype, "micro_batch_rows": 2}
    worker = start(**config)
    train(worker, groups)
    worker.save(tmp_path / "step-1")
    random_number = torch.rand(())
    expected = [train(worker, groups)["loss"] for _ in range(3)]

    resumed = start(**config)
    resumed.load(tmp_path / "step-1")

    assert torch.rand(()) == random_number
    assert [train(resumed, groups)["loss"] for _ in range(3)] == expected
    with pytest.raises(CheckpointError, match="no learner checkpoint at"):
        resumed.load(tmp_path / "step-2")


class Attack:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return exec, ("raise SystemExit('code of the file was run')",)


def test_code_in_a_checkpoint_is_refused(
    start: Callable[..., LearnerWorker], groups: Groups, tmp_path: Path
) -> None:
    worker = start(zero_stage=1)
    train(worker, groups)
    worker.save(tmp_path / "step-1")
    for pattern in ("*model_states.pt", "*optim_states.pt"):
        (file,) = (tmp_path / "step-1").rglob(pattern)
        whole = file.read_bytes()
        torch.save(torch.load(file, weights_only=False) | {"attack": Attack()}, file)
        with pytest.raises(CheckpointError, match="damaged, or holds code, which is never run"):
            worker.load(tmp_path / "step-1")
        file.write_bytes(whole)
    worker.load(tmp_path / "step-1")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_zero_3_evaluates_saves_sends_exports_and_trains_in_turn(
    start: Callable[..., LearnerWorker], groups: Groups, tmp_path: Path, dtype: str
) -> None:
    sequences = [np.arange(5, dtype=np.int32), np.array([7, 3, 1, 1, 9, 30], np.int32)]
    worker = start(zero_stage=3, dtype=dtype)
    before = worker.sequence_logprobs(sequences)
    sync = SyncSpec(transport="shm", bucket_bytes=20_000, folder=str(tmp_path / "sync"))
    plan = worker.open_sync(sync)
    for _ in range(2):  # the second round replaces files and finds the state the first one left
        train(worker, groups)
        worker.sequence_logprobs(sequences)
        worker.save(tmp_path / "step-1")
        assert len([part for part in worker.send() if part]) == len(plan)
        worker.export(tmp_path / "export")
        train(worker, groups)
    worker.export(tmp_path / "export")
    after = worker.sequence_logprobs(sequences)

    assert [len(row) for row in after] == [4, 5]
    assert all(np.abs(a - b).max() > 1e-3 for a, b in zip(after, before, strict=True))
    files = {file.name for file in (tmp_path / "export").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer_config.json"} <= files
    assert not list(tmp_path.glob("export.*"))
    reloaded = start(path=str(tmp_path / "export"), dtype=dtype)
    for row, expected in zip(reloaded.sequence_logprobs(sequences), after, strict=True):
        np.testing.assert_allclose(row, expected, atol=1e-6)
    from transformers import AutoModelForCausalLM

    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "export", dtype=torch.float32)
    logits_TV = plain(torch.from_numpy(sequences[0]).long()[None]).logits[0]
    logprobs_TV = torch.log_softmax(logits_TV, -1)[:-1]
    expected_T = logprobs_TV.gather(1, torch.arange(1, 5)[:, None])[:, 0].detach().numpy()
    np.testing.assert_allclose(after[0], expected_T, atol=1e-5 if dtype == "float32" else 0.1)
