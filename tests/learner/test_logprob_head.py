"""The log-prob head against plain torch, with and without slopes that are kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pytest
import torch
from forests import grow, inputs, tiny_model
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from learner.gradient_checkpointing import checkpoint_layers
from learner.logprob_head import LogprobHead, _score
from learner.logprobs import PolicyModel

TOKENS, HIDDEN, VOCABULARY = 11, 16, 37
PRODUCT = 2 * TOKENS * HIDDEN * VOCABULARY
"""FLOPs of one matrix product between hidden states, or their gradient, and all logits."""


@dataclass(frozen=True)
class Case:
    """What the head is asked for; the default of the learner, but for several chunks."""

    tokens: int = TOKENS
    chunk: int = 4
    temperature: float = 1.0
    frozen: bool = False
    entropy: bool = True
    trains_entropy: bool = False
    dtype: torch.dtype = torch.float32


CASES = (
    Case(),
    Case(temperature=0.7),
    Case(temperature=1.3, chunk=100),
    Case(tokens=12),
    Case(tokens=1),
    Case(tokens=0),
    Case(frozen=True),
    Case(entropy=False),
    Case(temperature=0.7, trains_entropy=True),
    Case(frozen=True, trains_entropy=True),
    Case(tokens=0, trains_entropy=True),
)


@dataclass(frozen=True)
class Result:
    logprobs_N: torch.Tensor
    entropy_N: torch.Tensor | None
    grad_hidden_NH: torch.Tensor
    grad_weight_VH: torch.Tensor | None

    @property
    def tensors(self) -> list[torch.Tensor]:
        found = (self.logprobs_N, self.entropy_N, self.grad_hidden_NH, self.grad_weight_VH)
        return [tensor.detach().float() for tensor in found if tensor is not None]


def example(case: Case) -> tuple[torch.Tensor, torch.nn.Parameter, torch.Tensor, torch.Tensor]:
    torch.manual_seed(case.tokens)
    hidden_NH = torch.randn(case.tokens, HIDDEN).to(case.dtype).requires_grad_()
    weight = (0.3 * torch.randn(VOCABULARY, HIDDEN)).to(case.dtype)
    weight_VH = torch.nn.Parameter(weight, requires_grad=not case.frozen)
    # A scale for every token, as advantages have; one of them is not trained.
    scale_N = torch.randn(case.tokens)
    scale_N[2:3] = 0.0
    return hidden_NH, weight_VH, torch.randint(VOCABULARY, (case.tokens,)), scale_N


def finish(
    case: Case,
    found: tuple[torch.Tensor, torch.Tensor | None],
    scale_N: torch.Tensor,
    hidden_NH: torch.Tensor,
    weight_VH: torch.nn.Parameter,
) -> Result:
    logprobs_N, entropy_N = found
    loss = (scale_N * logprobs_N).sum()
    if case.trains_entropy and entropy_N is not None:
        loss = loss - 0.2 * (scale_N * entropy_N).sum()
    loss.backward()
    assert hidden_NH.grad is not None
    assert (weight_VH.grad is None) == case.frozen
    return Result(logprobs_N, entropy_N, hidden_NH.grad, weight_VH.grad)


def by_head(case: Case, *, keep: bool) -> Result:
    hidden_NH, weight_VH, targets_N, scale_N = example(case)
    found = LogprobHead(weight_VH)(
        hidden_NH,
        targets_N,
        temperature=case.temperature,
        chunk=case.chunk,
        entropy=case.entropy,
        detach_entropy=not case.trains_entropy,
        keep_slopes=keep,
    )
    return finish(case, found, scale_N, hidden_NH, weight_VH)


def by_torch(case: Case) -> Result:
    hidden_NH, weight_VH, targets_N, scale_N = example(case)
    logits_NV = hidden_NH.float() @ weight_VH.float().T / case.temperature
    logp_NV = torch.log_softmax(logits_NV, dim=1)
    entropy_N = -(logp_NV.exp() * logp_NV).sum(1) if case.entropy else None
    found = logp_NV.gather(1, targets_N[:, None])[:, 0], entropy_N
    return finish(case, found, scale_N, hidden_NH, weight_VH)


def test_log_probs_and_gradients_are_those_of_torch() -> None:
    for case in CASES:
        expected = by_torch(case).tensors
        for keep in (True, False):
            found = by_head(case, keep=keep).tensors
            for ours, theirs in zip(found, expected, strict=True):
                assert ours.shape == theirs.shape
                torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5, msg=f"{case} {keep}")


def test_bfloat16_rounds_gradients_and_nothing_else() -> None:
    for case in CASES:
        rounded = replace(case, dtype=torch.bfloat16)
        expected = by_torch(rounded)
        for keep in (True, False):
            found = by_head(rounded, keep=keep)
            torch.testing.assert_close(found.logprobs_N, expected.logprobs_N, rtol=1e-5, atol=1e-5)
            assert found.grad_hidden_NH.dtype == torch.bfloat16
            pairs = zip(found.tensors, expected.tensors, strict=True)
            for ours, theirs in list(pairs)[-1 - (not case.frozen) :]:
                # Each factor of a product is rounded by up to 1/256, and so is the result.
                gap = (ours - theirs).norm()
                assert gap <= 0.008 * theirs.norm(), (case, keep)


@contextmanager
def shapes_kept() -> Iterator[list[torch.Size]]:
    """The shapes of tensors that autograd saves for the backward pass."""
    shapes: list[torch.Size] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        shapes.append(tensor.shape)
        return tensor

    with saved_tensors_hooks(note, lambda tensor: tensor):
        yield shapes


def test_with_slopes_nothing_is_computed_twice() -> None:
    # One product forward and one for each gradient; without slopes the logits a second time.
    for case, keep, products in (
        (Case(), True, 3),
        (Case(frozen=True), True, 2),
        (Case(), False, 4),
        (Case(frozen=True), False, 3),
        (Case(trains_entropy=True), True, 4),
    ):
        with FlopCounterMode(display=False) as counter:
            by_head(case, keep=keep)
        assert counter.get_total_flops() == products * PRODUCT, (case, keep)


def test_slopes_are_kept_only_where_a_backward_pass_needs_them() -> None:
    slopes = torch.Size((TOKENS, VOCABULARY))
    for case, keep, kept in (
        (Case(), True, True),
        (Case(frozen=True), True, True),
        (Case(), False, False),
        (Case(trains_entropy=True), True, False),
    ):
        with shapes_kept() as shapes:
            by_head(case, keep=keep)
        assert (slopes in shapes) == kept, (case, keep)
    hidden_NH, weight_VH, targets_N, _ = example(Case())
    head = LogprobHead(weight_VH)
    settings = {"temperature": 1.0, "chunk": 4, "entropy": False, "keep_slopes": True}
    with shapes_kept() as shapes, torch.no_grad():
        head(hidden_NH, targets_N, **settings)
    frozen = LogprobHead(weight_VH.requires_grad_(False))
    with shapes_kept() as shapes_frozen:
        frozen(hidden_NH.detach(), targets_N, **settings)
    assert shapes == shapes_frozen == []


def test_a_detached_entropy_has_no_gradient() -> None:
    for keep in (True, False):
        entropy_N = by_head(Case(), keep=keep).entropy_N
        assert entropy_N is not None
        assert not entropy_N.requires_grad


@pytest.mark.parametrize(("layers", "kept"), [(0, True), (1, False), (True, False)])
def test_a_policy_keeps_slopes_unless_layers_are_checkpointed(layers: int, kept: bool) -> None:
    model = tiny_model("llama")
    checkpoint_layers(model, layers)
    policy, batch = PolicyModel(model.train()), inputs(grow(seed=1).rows)
    with shapes_kept() as shapes:
        policy(*batch, temperature=1.0, chunk=64, entropy=True, detach_entropy=True)
    vocabulary = model.config.vocab_size
    assert any(shape[-1:] == (vocabulary,) and len(shape) == 2 for shape in shapes) == kept


def test_one_compiled_function_writes_the_slopes_in_place() -> None:
    """As on a GPU, but for the backend, which only traces: two chunks of one array, no break."""
    score = torch.compile(_score, fullgraph=True, backend="aot_eager")
    torch.manual_seed(0)
    slopes_NV = torch.zeros(7, VOCABULARY, dtype=torch.bfloat16)
    for part in (slice(0, 4), slice(4, 7)):
        logits_CV = torch.randn(len(slopes_NV[part]), VOCABULARY, requires_grad=True)
        targets_C = torch.randint(VOCABULARY, (len(logits_CV),))
        with torch.no_grad():
            score(logits_CV, targets_C, 0.7, True, slopes_NV[part])
        logp_C = torch.log_softmax(logits_CV / 0.7, 1).gather(1, targets_C[:, None])
        (expected_CV,) = torch.autograd.grad(logp_C.sum(), logits_CV)
        torch.testing.assert_close(slopes_NV[part].float(), expected_CV, rtol=0.004, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("tokens", "vocabulary"), [(3000, 5003), (14_200, 151_936)])
def test_on_a_gpu_both_ways_agree(tokens: int, vocabulary: int) -> None:
    """In bfloat16; the larger case has more than 2**31 slopes, and needs 10 GiB."""
    torch._dynamo.reset()  # the compiler has a limit of variants
    torch.manual_seed(0)
    made = torch.randn(tokens + vocabulary, 256, device="cuda", dtype=torch.bfloat16)
    targets_N = torch.randint(vocabulary, (tokens,), device="cuda")
    scale_N = torch.randn(tokens, device="cuda")
    results = []
    for keep in (True, False):
        hidden_NH = made[:tokens].clone().requires_grad_()
        weight_VH = torch.nn.Parameter(0.1 * made[tokens:])
        logprobs_N, entropy_N = LogprobHead(weight_VH)(
            hidden_NH,
            targets_N,
            temperature=0.7,
            chunk=1024,
            entropy=True,
            detach_entropy=True,
            keep_slopes=keep,
        )
        (scale_N * logprobs_N).sum().backward()
        results.append((logprobs_N.detach(), entropy_N, hidden_NH.grad, weight_VH.grad))
    (logprobs_N, entropy_N, *gradients), (logprobs_again_N, entropy_again_N, *others) = results
    torch.testing.assert_close(logprobs_N, logprobs_again_N, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(entropy_N, entropy_again_N, rtol=1e-5, atol=1e-5)
    for kept, again in zip(gradients, others, strict=True):
        assert (kept.float() - again.float()).norm() <= 0.01 * again.float().norm()
