"""Checkpointed layers: equal gradients, layers that run twice, compilations, the error."""

from __future__ import annotations

import pytest
import torch
from forests import grow, inputs, tiny_model
from torch._dynamo.testing import CompileCounterWithBackend

from learner.gradient_checkpointing import asked_layers, memory_errors
from learner.logprobs import PolicyModel, load_policy
from rlsys.config import LoraConfig
from rlsys.errors import ConfigError, TrainingError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("qwen2")
    tiny_model("qwen2").save_pretrained(path)
    return str(path)


def load(folder: str, setting: bool | int, lora: LoraConfig | None = None) -> PolicyModel:
    torch.manual_seed(0)  # adapters start from random numbers
    return load_policy(
        folder,
        dtype=torch.float32,
        device=torch.device("cpu"),
        gradient_checkpointing=setting,
        lora=lora,
    )


def gradients(policy: PolicyModel) -> dict[str, torch.Tensor]:
    forest = grow(seed=1)
    weight_RT = torch.randn(forest.rows.token_ids.shape, generator=torch.manual_seed(2))
    logprobs_RT, entropy_RT = policy(*inputs(forest.rows), temperature=0.7, chunk=64, entropy=True)
    ((logprobs_RT + 0.3 * entropy_RT) * weight_RT).sum().backward()
    return {key: p.grad for key, p in policy.model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("lora", [None, LoraConfig(rank=4)])
def test_gradients_are_the_same_and_the_first_layers_run_twice(
    folder: str, lora: LoraConfig | None
) -> None:
    expected = gradients(load(folder, False, lora))
    for setting, runs in ((0, [1, 1]), (1, [2, 1]), (2, [2, 2]), (True, [2, 2])):
        policy = load(folder, setting, lora)
        mlps = [layer.mlp for layer in policy.model.base_model.layers]
        ran: list[torch.nn.Module] = []
        for mlp in mlps:
            mlp.register_forward_pre_hook(lambda module, *_, ran=ran: ran.append(module))
        found = gradients(policy)
        assert [ran.count(mlp) for mlp in mlps] == runs, setting
        assert found.keys() == expected.keys()
        for key, gradient in found.items():
            torch.testing.assert_close(gradient, expected[key], atol=1e-6, rtol=1e-5)


def test_all_layers_share_their_compilations(folder: str) -> None:
    """One for training and one for scoring, also if some layers are checkpointed."""
    for setting in (0, 1, 2):
        torch._dynamo.reset()
        policy, counter = load(folder, setting), CompileCounterWithBackend("aot_eager")
        for layer in policy.model.base_model.layers:
            layer.compile(backend=counter)
        for _ in range(2):
            gradients(policy)
        assert counter.frame_count == 1, setting
        with torch.no_grad():
            policy(*inputs(grow(seed=1).rows), temperature=1.0, chunk=64)
        assert counter.frame_count == 2, setting


def test_the_number_of_layers() -> None:
    cases = [(False, 0), (True, 28), (0, 0), (1, 1), (28, 28)]
    for setting, expected in cases:
        assert asked_layers(setting, 28) == expected, setting
    with pytest.raises(ConfigError, match="gradient_checkpointing 29 is more than the 28 layers"):
        asked_layers(29, 28)


def test_more_layers_than_the_model_has_are_refused(folder: str) -> None:
    with pytest.raises(ConfigError, match="3 is more than the 2 layers"):
        load(folder, 3)


def test_too_little_memory_names_the_key_unless_all_layers_are_checkpointed() -> None:
    text = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79 GiB"
    for setting, named in ((False, True), (12, True), (True, False)):
        with pytest.raises(TrainingError) as caught, memory_errors(3, setting):
            raise torch.OutOfMemoryError(text)
        sentence = str(caught.value)
        assert "learner rank 3" in sentence and "Tried to allocate 2.00 GiB)" in sentence
        assert "learner.micro_batch_rows" in sentence
        assert ("learner.gradient_checkpointing" in sentence) == named
    with pytest.raises(ValueError, match="another"), memory_errors(0, setting=False):
        raise ValueError("another error")
