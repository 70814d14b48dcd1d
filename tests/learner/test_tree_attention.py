"""Packed rows of random trees against every root-to-leaf path run alone, values and gradients."""

from pathlib import Path

import numpy as np
import pytest
import torch
from forests import ARCHITECTURES, grow, inputs, paths_alone, tiny_model
from torch.nn.attention.flex_attention import create_block_mask

from learner.attention import attention_implementation, block_mask, dense_mask, dense_trunk
from learner.logprobs import PolicyModel, load_policy
from rlsys.errors import ModelError


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("checkpointing", [False, True])
def test_packed_rows_equal_paths_alone(name: str, checkpointing: bool) -> None:
    """Log-probs, entropies and the gradients of a weighted sum of both."""
    policy, forest = PolicyModel(tiny_model(name)), grow(seed=1)
    weight_RT = torch.randn(forest.rows.token_ids.shape, generator=torch.manual_seed(2))

    def gradients(logprobs_RT: torch.Tensor, entropy_RT: torch.Tensor) -> dict[str, torch.Tensor]:
        policy.zero_grad()
        ((logprobs_RT + 0.3 * entropy_RT) * weight_RT).sum().backward()
        return {key: p.grad.clone() for key, p in policy.model.named_parameters()}

    expected = paths_alone(policy.model, forest, temperature=0.7)
    expected_gradients = gradients(*expected)
    if checkpointing:
        policy.model.gradient_checkpointing_enable({"use_reentrant": False})
    logprobs_RT, entropy_RT = policy(*inputs(forest.rows), temperature=0.7, chunk=64, entropy=True)
    torch.testing.assert_close(logprobs_RT, expected[0], atol=1e-4, rtol=0)
    torch.testing.assert_close(entropy_RT, expected[1], atol=1e-4, rtol=0)
    for key, gradient in gradients(logprobs_RT, entropy_RT).items():
        gap = (gradient - expected_gradients[key]).norm()
        assert gap <= 1e-4 * expected_gradients[key].norm(), key


@pytest.mark.parametrize("seed", range(2, 8))
def test_many_forests(seed: int) -> None:
    policy, forest = PolicyModel(tiny_model("qwen3")), grow(seed, rows=3, trees=6)
    with torch.no_grad():
        logprobs_RT, _ = policy(*inputs(forest.rows), temperature=1.0, chunk=1024)
        expected_RT, _ = paths_alone(policy.model, forest, temperature=1.0)
    torch.testing.assert_close(logprobs_RT, expected_RT, atol=1e-4, rtol=0)


def test_only_selected_tokens_and_any_chunk() -> None:
    """A selection gives the same numbers and zeros elsewhere, whatever the chunk."""
    policy, forest = PolicyModel(tiny_model("llama")), grow(seed=3)
    *fields, select_RT = inputs(forest.rows)
    chosen_RT = select_RT & (torch.rand(select_RT.shape, generator=torch.manual_seed(1)) < 0.5)
    with torch.no_grad():
        every_RT, _ = policy(*fields, select_RT, temperature=1.3, chunk=1024)
    results = []
    for chunk in (1, 7, 1024):
        policy.zero_grad()
        some_RT, entropy = policy(*fields, chosen_RT, temperature=1.3, chunk=chunk)
        assert entropy is None
        some_RT.square().sum().backward()
        results.append(policy.model.lm_head.weight.grad.clone())
        torch.testing.assert_close(some_RT, torch.where(chosen_RT, every_RT, 0), atol=1e-5, rtol=0)
    torch.testing.assert_close(results[0], results[2], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(results[1], results[2], rtol=1e-4, atol=1e-6)


def test_entropy_alone_has_the_gradient_of_the_direct_formula() -> None:
    head = PolicyModel(tiny_model("llama")).head
    hidden_NH = torch.randn(20, 64, generator=torch.manual_seed(0)).requires_grad_()
    targets_N = torch.zeros(20, dtype=torch.long)
    _, entropy_N = head(hidden_NH, targets_N, temperature=2.0, chunk=8, entropy=True)
    entropy_N.sum().backward()
    ours, hidden_NH.grad = hidden_NH.grad, None
    torch.distributions.Categorical(logits=hidden_NH @ head.weight.T / 2).entropy().sum().backward()
    torch.testing.assert_close(ours, hidden_NH.grad, atol=1e-5, rtol=1e-4)


def test_nothing_selected_still_gives_every_parameter_a_gradient() -> None:
    """A rank whose rows are filler must take part in the same collectives as the others."""
    policy, forest = PolicyModel(tiny_model("llama")), grow(seed=4)
    *fields, select_RT = inputs(forest.rows)
    logprobs_RT, _ = policy(*fields, torch.zeros_like(select_RT), temperature=1.0, chunk=8)
    logprobs_RT.sum().backward()
    assert all((p.grad == 0).all() for p in policy.parameters())


def test_bfloat16_logits_are_float32() -> None:
    """From the same bfloat16 hidden states: the softmax of unrounded products, to 1e-5."""
    policy, forest = PolicyModel(tiny_model("llama")).bfloat16(), grow(seed=5)
    hidden_NH = torch.randn(50, 64, generator=torch.manual_seed(0)).bfloat16()
    targets_N = torch.arange(50)
    logprobs_N, _ = policy.head(hidden_NH, targets_N, temperature=0.5, chunk=16, entropy=False)
    logits_NV = hidden_NH.float() @ policy.model.lm_head.weight.float().T / 0.5
    expected_N = torch.log_softmax(logits_NV, -1).gather(1, targets_N[:, None])[:, 0]
    assert logprobs_N.dtype == torch.float32
    torch.testing.assert_close(logprobs_N, expected_N, atol=1e-5, rtol=0)
    logprobs_RT, _ = policy(*inputs(forest.rows), temperature=1.0, chunk=64)
    logprobs_RT.sum().backward()
    assert policy.model.lm_head.weight.grad.dtype == torch.bfloat16


def test_block_mask_equals_the_one_built_from_all_pairs() -> None:
    """Two rows of 512: many trees, and one deep tree whose trunk fills whole blocks."""
    many = grow(seed=6, rows=1, trees=14, row_tokens=512).rows.exits
    trunk = np.full((1, 512), 512, np.int32)
    trunk[0, 130:390] = 390
    trunk[0, 200:260] = 260
    exits_RT = torch.from_numpy(np.concatenate([many, trunk]))

    mask = block_mask(exits_RT)
    every_pair = create_block_mask(
        lambda b, _h, q, k: (k <= q) & (q < exits_RT[b, k]), 2, None, 512, 512, device="cpu"
    )
    assert torch.equal(mask.to_dense(), every_pair.to_dense())
    assert torch.equal(mask.kv_num_blocks, every_pair.kv_num_blocks)
    assert torch.equal(mask.full_kv_num_blocks, every_pair.full_kv_num_blocks)
    assert int(mask.full_kv_num_blocks.sum()) > 0
    pairs = create_block_mask(mask.mask_mod, 2, None, 512, 512, device="cpu", BLOCK_SIZE=1)
    assert torch.equal(pairs.to_dense().bool(), dense_mask(exits_RT))
    # Without the first two blocks of queries.
    behind = block_mask(exits_RT, 256)
    assert torch.equal(behind.kv_num_blocks, mask.kv_num_blocks[:, :, 2:])
    assert torch.equal(behind.full_kv_indices, mask.full_kv_indices[:, :, 2:])
    pairs = create_block_mask(behind.mask_mod, 2, None, 256, 512, device="cpu", BLOCK_SIZE=1)
    assert torch.equal(pairs.to_dense().bool(), dense_mask(exits_RT)[:, :, 256:])


def test_the_dense_kernel_gets_whole_blocks_of_a_long_trunk() -> None:
    cases = {
        (300, 512): 256,
        (256, 512): 256,
        (255, 512): 0,
        (512, 512): 384,
        (128, 128): 0,
        (0, 128): 0,
        (8108, 10_240): 7680,
    }
    assert {case: dense_trunk(*case) for case in cases} == cases


def test_policy_loads_with_the_names_of_the_checkpoint(tmp_path: Path) -> None:
    model = tiny_model("qwen2")
    model.save_pretrained(tmp_path)
    policy = load_policy(
        str(tmp_path),
        dtype=torch.float32,
        device=torch.device("cpu"),
        gradient_checkpointing=True,
    )
    assert policy.model.state_dict().keys() == model.state_dict().keys()
    assert sum(1 for _ in policy.parameters()) == sum(1 for _ in model.parameters())
    assert policy.model.config._attn_implementation == attention_implementation("cpu") == "sdpa"
    assert policy.model.is_gradient_checkpointing and policy.training
    assert policy.head.weight is policy.model.model.embed_tokens.weight


def test_a_model_without_causal_attention_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(ModelError, match=r"'bert', which is no causal .* llama, qwen2, qwen3"):
        load_policy(
            str(tmp_path),
            dtype=torch.float32,
            device=torch.device("cpu"),
            gradient_checkpointing=False,
        )
