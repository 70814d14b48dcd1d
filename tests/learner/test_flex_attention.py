"""FlexAttention on a GPU: packed rows against paths run alone through SDPA, and its gradients."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from forests import (
    ARCHITECTURES,
    Forest,
    grow,
    inputs,
    paths_alone,
    thought_with_answers,
    tiny_model,
)

from learner.attention import BLOCK, attention_implementation, dense_trunk, tree_mask
from learner.logprobs import PolicyModel
from learner.packing import flatten, pack_rows

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture(autouse=True)
def _fresh_compiler() -> None:
    """Every case has its own shapes, and the compiler has a limit of variants."""
    torch._dynamo.reset()


def models(name: str, head_dim: int, dtype: torch.dtype) -> tuple[PolicyModel, torch.nn.Module]:
    """The same weights behind FlexAttention (packed) and SDPA (alone)."""
    packed = tiny_model(name, head_dim, attention_implementation("cuda")).to("cuda", dtype)
    return PolicyModel(packed), tiny_model(name, head_dim).to("cuda", dtype)


def forest(seed: int) -> Forest:
    return grow(seed, rows=2, trees=16, row_tokens=4 * BLOCK)


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_float32(name: str, checkpointing: bool, head_dim: int) -> None:
    (policy, alone), trees = models(name, head_dim, torch.float32), forest(seed=1)
    if checkpointing:
        policy.model.gradient_checkpointing_enable({"use_reentrant": False})
    weight_RT = torch.randn(trees.rows.token_ids.shape, generator=torch.manual_seed(2)).cuda()

    expected = paths_alone(alone, trees, temperature=0.7)
    found = policy(*inputs(trees.rows, "cuda"), temperature=0.7, chunk=128, entropy=True)
    for value_RT, expected_RT in zip(found, expected, strict=True):
        torch.testing.assert_close(value_RT, expected_RT, atol=1e-3, rtol=0)
    for logprobs_RT, entropy_RT in (found, expected):
        ((logprobs_RT + 0.3 * entropy_RT) * weight_RT).sum().backward()
    for ours, theirs in zip(policy.model.parameters(), alone.parameters(), strict=True):
        assert (ours.grad - theirs.grad).norm() <= 1e-3 * theirs.grad.norm()


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_bfloat16(name: str, head_dim: int, record_property: Callable[[str, object], None]) -> None:
    """The gap is rounding: no larger than the one SDPA has to float32 on the same weights."""
    (policy, alone), trees = models(name, head_dim, torch.bfloat16), forest(seed=3)
    with torch.no_grad():
        found_RT, _ = policy(*inputs(trees.rows, "cuda"), temperature=1.0, chunk=128)
        alone_RT, _ = paths_alone(alone, trees, temperature=1.0)
        exact_RT, _ = paths_alone(alone.float(), trees, temperature=1.0)
    real_RT = torch.from_numpy(trees.rows.trees >= 0)
    gaps = {
        "packed_to_alone": (found_RT - alone_RT).abs()[real_RT],
        "packed_to_float32": (found_RT - exact_RT).abs()[real_RT],
        "alone_to_float32": (alone_RT - exact_RT).abs()[real_RT],
    }
    for key, gap in gaps.items():
        record_property(key, f"mean {gap.mean():.4f} max {gap.max():.4f}")
        print(f"{name} head_dim {head_dim} {key}: mean {gap.mean():.4f} max {gap.max():.4f}")
    assert gaps["packed_to_float32"].mean() <= 1.1 * gaps["alone_to_float32"].mean()
    assert gaps["packed_to_alone"].mean() <= 0.05


@pytest.mark.parametrize("thoughts", [(390, 400), (420, 300)])
def test_a_trunk_changes_nothing_but_rounding(thoughts: tuple[int, int]) -> None:
    rows = pack_rows([[flatten(thought_with_answers(n))] for n in thoughts], 4 * BLOCK)
    trunk = dense_trunk(rows.trunk, 4 * BLOCK)
    assert trunk >= 2 * BLOCK
    results = []
    for tokens in (0, trunk):
        policy, _ = models("qwen2", 128, torch.float32)
        values_RT, _ = policy(*inputs(rows, "cuda"), temperature=1.0, chunk=128, trunk=tokens)
        values_RT.sum().backward()
        results.append([values_RT, *(p.grad for p in policy.model.parameters())])
    for plain, split in zip(*results, strict=True):
        assert (plain - split).norm() <= 1e-3 * plain.norm()


def test_mask_skips_blocks() -> None:
    """Four trees of one block each: FlexAttention visits the diagonal and nothing else."""
    exits_RT = torch.from_numpy(np.repeat(np.arange(1, 5, dtype=np.int32) * BLOCK, BLOCK)[None])
    mask = tree_mask(exits_RT.cuda())
    assert torch.equal(mask.to_dense()[0, 0].cpu().bool(), torch.eye(4, dtype=torch.bool))
