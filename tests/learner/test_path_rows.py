"""Models that cannot read packed trees read paths: equal log-probs, gradients and names."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from forests import SHAPE, grow, inputs, paths_alone, tiny_model
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from learner.logprobs import PolicyModel, load_policy
from learner.sync import SyncSpec, WeightSender
from rlsys.errors import ModelError
from rlsys.model_types import packs_trees
from rlsys.weights import BucketFile

WINDOWS = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LINEAR = {
    **{"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 16},
    **{"linear_value_head_dim": 16, "layer_types": ["linear_attention", "full_attention"]},
}
LOCAL = {"num_local_experts": 4, "num_experts_per_tok": 2}

FAMILIES: list[tuple[str, dict[str, Any], bool]] = [
    # Type, settings, True if trees are packed.
    ("mistral", {"sliding_window": None}, True),
    ("mistral", {"sliding_window": 4}, False),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}, False),
    ("gemma", {"head_dim": 32}, True),
    ("gemma3_text", {"head_dim": 32, **WINDOWS}, False),
    ("phi3", {"sliding_window": None}, True),
    ("phi3", {"sliding_window": 4}, False),
    ("olmo2", {}, True),
    ("olmo3", WINDOWS, False),
    ("smollm3", {}, True),
    ("granite", {}, True),
    ("mixtral", LOCAL, True),
    ("qwen2_moe", {**EXPERTS, "shared_expert_intermediate_size": 32}, True),
    ("qwen3_moe", {**EXPERTS, "head_dim": 32}, True),
    ("gpt_oss", {**LOCAL, "head_dim": 32, **WINDOWS}, False),
    ("qwen3_next", {**EXPERTS, **LINEAR, "head_dim": 32}, False),
    ("lfm2", {"layer_types": ["conv", "full_attention"]}, False),
    ("gpt2", {}, False),
]


def random_model(name: str, settings: dict[str, Any]) -> PreTrainedModel:
    torch.manual_seed(0)
    config = AutoConfig.for_model(name, **{**SHAPE, "pad_token_id": 0, **settings})
    return AutoModelForCausalLM.from_config(config).eval()


def gradients(policy: PolicyModel, logprobs_RT: torch.Tensor) -> dict[str, torch.Tensor]:
    policy.zero_grad()
    weight_RT = torch.randn(logprobs_RT.shape, generator=torch.manual_seed(2))
    (logprobs_RT * weight_RT).sum().backward()
    return {n: p.grad.clone() for n, p in policy.model.named_parameters() if p.grad is not None}


def check_equal(ours: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert ours.keys() == expected.keys()
    for key, gradient in ours.items():
        assert (gradient - expected[key]).norm() <= 1e-4 * expected[key].norm() + 1e-6, key


def test_a_packed_model_gives_the_same_from_paths() -> None:
    """Log-probs, entropies, gradients and any selection, from the model that can do both."""
    model, forest = tiny_model("qwen3"), grow(seed=1)
    *fields, select_RT = inputs(forest.rows)
    for share in (1.0, 0.3, 0.02, 0.0):
        chosen_RT = select_RT & (torch.rand(select_RT.shape) < share)
        found = []
        for packed in (True, False):
            policy = PolicyModel(model, packed=packed)
            logprobs_RT, entropy_RT = policy(
                *fields, chosen_RT, temperature=0.7, chunk=64, entropy=True
            )
            found.append((logprobs_RT, entropy_RT, gradients(policy, logprobs_RT + entropy_RT)))
        (packed_RT, entropy_RT, expected), (paths_RT, path_entropy_RT, ours) = found
        torch.testing.assert_close(paths_RT, packed_RT, atol=1e-4, rtol=0)
        torch.testing.assert_close(path_entropy_RT, entropy_RT, atol=1e-4, rtol=0)
        check_equal(ours, expected)


@pytest.mark.parametrize(("name", "settings", "packed"), FAMILIES)
def test_families(name: str, settings: dict[str, Any], packed: bool) -> None:
    """Every family gives the log-probs and gradients of its paths alone."""
    model, forest = random_model(name, settings), grow(seed=1, rows=1)
    assert packs_trees(model.config) == packed
    policy = PolicyModel(model)
    expected_RT, _ = paths_alone(model, forest, temperature=1.0)
    expected = gradients(policy, expected_RT)
    logprobs_RT, _ = policy(*inputs(forest.rows), temperature=1.0, chunk=64)
    torch.testing.assert_close(logprobs_RT, expected_RT, atol=1e-4, rtol=0)
    check_equal(gradients(policy, logprobs_RT), expected)


def load(folder: Path) -> PolicyModel:
    cpu = torch.device("cpu")
    return load_policy(str(folder), dtype=torch.float32, device=cpu, gradient_checkpointing=True)


def test_experts_are_sent_and_saved_under_the_names_of_the_checkpoint(tmp_path: Path) -> None:
    for name, settings in (("qwen3_moe", EXPERTS), ("mixtral", LOCAL), ("llama", {})):
        random_model(name, settings).save_pretrained(tmp_path / name)
        with safe_open(tmp_path / name / "model.safetensors", "np") as file:
            written = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        policy = load(tmp_path / name)
        spec = SyncSpec(transport="shm", bucket_bytes=1 << 14, folder=str(tmp_path / "sent"))
        sender = WeightSender(policy.model, spec, dtype="float32", rank=0, partitioned=False)
        sent: dict[str, np.ndarray] = {}
        for part, bucket in zip(sender.send(), sender.plan(), strict=True):
            assert isinstance(part, BucketFile)
            with safe_open(part.path, "np") as file:
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            assert {(key, tensor.shape) for key, tensor in tensors.items()} == {
                (key, shape) for key, _, shape in bucket
            }
            sent |= tensors
        assert sent.keys() == written.keys()
        assert all(np.array_equal(sent[key], written[key]) for key in sent)


def test_dropout_is_removed_and_scaled_logits_are_refused(tmp_path: Path) -> None:
    random_model("gpt2", {"resid_pdrop": 0.5}).save_pretrained(tmp_path / "gpt2")
    assert load(tmp_path / "gpt2").model.config.resid_pdrop == 0.0
    random_model("cohere2", {}).save_pretrained(tmp_path / "cohere2")
    with pytest.raises(ModelError, match="changes its logits"):
        load(tmp_path / "cohere2")
    # A bias of the output embedding is in no setting.
    model = random_model("phi", {})
    torch.nn.init.ones_(model.lm_head.bias)
    model.lm_head.bias.data[3] = 9.0
    model.save_pretrained(tmp_path / "phi")
    with pytest.raises(ModelError, match="after the output embedding"):
        load(tmp_path / "phi")
