"""The output embedding and a softmax, with logits of at most one chunk of tokens at a time.

On a GPU everything between the two matrix products of a chunk is compiled.

Letters of shapes: N wanted tokens, C tokens of a chunk, H hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, TypeVar

import torch

if TYPE_CHECKING:
    from torch.autograd.function import FunctionCtx


class LogprobHead(torch.nn.Module):  # type: ignore[misc]
    """The output embedding and a softmax, from hidden states to log-probs.

    It holds the model's own parameter, tied or not, under a second name. DeepSpeed ZeRO-3 gathers
    the parameters of a module around its forward and its backward pass, so the loop over chunks
    needs one gather in each of them instead of one per chunk.
    """

    def __init__(self, weight_VH: torch.nn.Parameter) -> None:
        super().__init__()
        self.weight = weight_VH

    def forward(
        self,
        hidden_NH: torch.Tensor,
        targets_N: torch.Tensor,
        *,
        temperature: float,
        chunk: int,
        entropy: bool,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return float32 log-probs [N] of `targets_N` and, if asked for, entropies [N]."""
        result: tuple[torch.Tensor, torch.Tensor | None] = _ChunkedLogprobs.apply(
            hidden_NH, self.weight, targets_N, temperature, chunk, entropy
        )
        return result


class _ChunkedLogprobs(torch.autograd.Function):  # type: ignore[misc]
    """log_softmax(hidden @ weight.T / temperature) at the targets, and its entropy.

    The backward pass computes the logits again, chunk by chunk; a frozen weight gets no gradient.
    With p the probabilities and H the entropy,
    d logprob / d logits = onehot - p and d H / d logits = -p (log p + H).
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        hidden_NH: torch.Tensor,
        weight_VH: torch.Tensor,
        targets_N: torch.Tensor,
        temperature: float,
        chunk: int,
        entropy: bool,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        logprobs_N = torch.empty(len(targets_N), device=hidden_NH.device)
        entropy_N = torch.empty_like(logprobs_N) if entropy else None
        score = _on_device(_score, hidden_NH.device)
        for part in _parts(len(targets_N), chunk):
            logits_CV = matmul_float32(hidden_NH[part], weight_VH.T)
            logprobs_N[part], entropy_C = score(logits_CV, targets_N[part], temperature, entropy)
            if entropy_N is not None:
                entropy_N[part] = entropy_C
        ctx.save_for_backward(hidden_NH, weight_VH, targets_N, entropy_N)
        ctx.temperature, ctx.chunk = temperature, chunk
        # The gradient of an output that no loss uses then comes as None instead of zeros, and an
        # entropy that is only logged adds nothing to the backward pass.
        ctx.set_materialize_grads(False)
        return logprobs_N, entropy_N

    @staticmethod
    def backward(
        ctx: FunctionCtx,
        grad_logprobs_N: torch.Tensor | None,
        grad_entropy_N: torch.Tensor | None,
    ) -> tuple[torch.Tensor | None, ...]:
        hidden_NH, weight_VH, targets_N, entropy_N = ctx.saved_tensors
        if grad_logprobs_N is None:
            grad_logprobs_N = torch.zeros_like(entropy_N)  # the loss uses the entropy alone
        grad_hidden_NH = torch.empty_like(hidden_NH)
        grad_weight_VH = None
        if ctx.needs_input_grad[1]:
            # Summed in float32: bfloat16 would lose the later chunks of a long batch.
            grad_weight_VH = torch.zeros_like(weight_VH, dtype=torch.float32)
        slope = _on_device(_slope, hidden_NH.device)
        for part in _parts(len(targets_N), ctx.chunk):
            logits_CV = matmul_float32(hidden_NH[part], weight_VH.T)
            # None of the entropies, where no loss uses them.
            slope_C = None if grad_entropy_N is None else (entropy_N[part], grad_entropy_N[part])
            grad_CV = slope(
                logits_CV,
                targets_N[part],
                ctx.temperature,
                grad_logprobs_N[part],
                slope_C,
                weight_VH.dtype,
            )
            grad_hidden_NH[part] = grad_CV @ weight_VH
            if grad_weight_VH is not None:
                grad_weight_VH += matmul_float32(grad_CV.T, hidden_NH[part])
        if grad_weight_VH is not None:
            grad_weight_VH = grad_weight_VH.to(weight_VH.dtype)
        return grad_hidden_NH, grad_weight_VH, None, None, None, None


def _parts(length: int, chunk: int) -> list[slice]:
    return [slice(start, start + chunk) for start in range(0, length, chunk)]


def _score(
    logits_CV: torch.Tensor, targets_C: torch.Tensor, temperature: float, entropy: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the log-probs [C] of the targets and, if asked for, the entropies [C]."""
    logp_CV = _log_softmax(logits_CV, temperature)
    logprobs_C = logp_CV.gather(1, targets_C[:, None]).squeeze(1)
    return logprobs_C, -(logp_CV.exp() * logp_CV).sum(1) if entropy else None


def _slope(
    logits_CV: torch.Tensor,
    targets_C: torch.Tensor,
    temperature: float,
    grad_C: torch.Tensor,
    entropy_C: tuple[torch.Tensor, torch.Tensor] | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Return the gradient [C, V] of the logits in `dtype`.

    Args:
        grad_C: gradient of the log-probs.
        entropy_C: the entropies and their gradient, or None if they have none.
    """
    logp_CV = _log_softmax(logits_CV, temperature)
    factor_CV = grad_C[:, None]
    if entropy_C is not None:
        value_C, slope_C = entropy_C
        factor_CV = (logp_CV + value_C[:, None]) * slope_C[:, None] + factor_CV
    index_V = torch.arange(logits_CV.shape[1], device=logits_CV.device)
    target_CV = torch.where(index_V == targets_C[:, None], grad_C[:, None], 0.0)
    return ((target_CV - logp_CV.exp() * factor_CV) / temperature).to(dtype)


def _log_softmax(logits_CV: torch.Tensor, temperature: float) -> torch.Tensor:
    if temperature != 1:  # a copy of the largest array there is
        logits_CV = logits_CV / temperature
    return torch.log_softmax(logits_CV, dim=-1)


F = TypeVar("F", bound=Callable[..., object])


def _on_device(function: F, device: torch.device) -> F:
    """Return `function` compiled on a GPU: one pass over a chunk's [C, V] array instead of ten."""
    return _compiled(function) if device.type == "cuda" else function


@cache
def _compiled(function: F) -> F:
    compiled: F = torch.compile(function)
    return compiled


def matmul_float32(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Matrix product with a float32 result.

    bfloat16 has 8 significant bits, so a logit between 16 and 32 rounded to it is off by up to
    0.06.
    """
    if left.dtype != torch.float32 and left.device.type == "cuda":
        return torch.mm(left, right, out_dtype=torch.float32)  # tensor cores, unrounded sums
    return left.float() @ right.float()
