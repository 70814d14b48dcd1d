"""The output embedding and a softmax, with float32 logits of at most one chunk of tokens at a time.

The backward pass needs the slope of every log-prob, its derivative by the logits:
(onehot of the target - p) / temperature, with p the probabilities. A head that keeps the slopes
computes nothing twice; otherwise the backward pass computes the logits again.

On a GPU everything between the matrix products of a chunk is compiled.

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
        detach_entropy: bool = False,
        keep_slopes: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return float32 log-probs [N] of `targets_N` and, if asked for, entropies [N].

        Args:
            hidden_NH, targets_N: hidden states, and the tokens that they predict.
            temperature: logits are divided by it before the softmax.
            chunk: tokens whose float32 logits exist at once.
            entropy: whether to compute entropies too.
            detach_entropy: the entropies get no gradient, because no loss trains them.
            keep_slopes: keep [N, V] numbers in the weight's precision for the backward pass, which
                then computes no logits. Nothing is kept in a pass without gradients, nor where the
                entropies get a gradient, which the slopes alone do not determine.
        """
        # Asked here, because gradients are always off inside an autograd function.
        with_gradient = torch.is_grad_enabled() and (
            hidden_NH.requires_grad or self.weight.requires_grad
        )
        trains_entropy = entropy and not detach_entropy
        keeps = keep_slopes and with_gradient and not trains_entropy and len(targets_N) > 0
        function = _KeptSlopes if keeps else _ChunkedLogprobs
        logprobs_N, entropy_N = function.apply(
            hidden_NH, self.weight, targets_N, temperature, chunk, entropy
        )
        if entropy_N is not None and detach_entropy:
            entropy_N = entropy_N.detach()
        return logprobs_N, entropy_N


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
        logprobs_N, entropy_N = _score_chunks(
            hidden_NH, weight_VH, targets_N, temperature, chunk, entropy, None
        )
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


class _KeptSlopes(torch.autograd.Function):  # type: ignore[misc]
    """The same function without a gradient of the entropy; its backward pass computes no logits.

    With S the slopes and g the gradient of the log-probs, the gradients of hidden states and weight
    are diag(g) S weight and S.T diag(g) hidden. So g scales arrays [N, H], and nothing but the two
    matrix products reads the much larger S.
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
        slopes_NV = weight_VH.new_empty(len(targets_N), len(weight_VH))
        logprobs_N, entropy_N = _score_chunks(
            hidden_NH, weight_VH, targets_N, temperature, chunk, entropy, slopes_NV
        )
        ctx.save_for_backward(hidden_NH, weight_VH, slopes_NV)
        return logprobs_N, entropy_N

    @staticmethod
    def backward(
        ctx: FunctionCtx, grad_logprobs_N: torch.Tensor, _grad_entropy_N: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        hidden_NH, weight_VH, slopes_NV = ctx.saved_tensors
        grad_N1 = grad_logprobs_N[:, None]
        # Scaled before it is rounded to the precision of the hidden states.
        grad_hidden_NH = matmul_float32(slopes_NV, weight_VH).mul_(grad_N1).to(hidden_NH.dtype)
        grad_weight_VH = None
        if ctx.needs_input_grad[1]:
            scaled_NH = (hidden_NH * grad_N1).to(hidden_NH.dtype)
            grad_weight_VH = matmul_float32(slopes_NV.T, scaled_NH).to(weight_VH.dtype)
        return grad_hidden_NH, grad_weight_VH, None, None, None, None


def _score_chunks(
    hidden_NH: torch.Tensor,
    weight_VH: torch.Tensor,
    targets_N: torch.Tensor,
    temperature: float,
    chunk: int,
    entropy: bool,
    slopes_NV: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return log-probs [N] and, if asked for, entropies [N]; fill `slopes_NV` if it is given."""
    logprobs_N = torch.empty(len(targets_N), device=hidden_NH.device)
    entropy_N = torch.empty_like(logprobs_N) if entropy else None
    score = _on_device(_score, hidden_NH.device)
    for part in _parts(len(targets_N), chunk):
        logprobs_N[part], entropy_C = score(
            # Without a name, so that they are free before those of the next chunk are made.
            matmul_float32(hidden_NH[part], weight_VH.T),
            targets_N[part],
            temperature,
            entropy,
            None if slopes_NV is None else slopes_NV[part],
        )
        if entropy_N is not None:
            entropy_N[part] = entropy_C
    return logprobs_N, entropy_N


def _parts(length: int, chunk: int) -> list[slice]:
    return [slice(start, start + chunk) for start in range(0, length, chunk)]


def _score(
    logits_CV: torch.Tensor,
    targets_C: torch.Tensor,
    temperature: float,
    entropy: bool,
    slopes_CV: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the log-probs [C] of the targets and, if asked for, the entropies [C].

    The slopes of the log-probs are written to `slopes_CV`, if it is given.
    """
    logp_CV = _log_softmax(logits_CV, temperature)
    logprobs_C = logp_CV.gather(1, targets_C[:, None]).squeeze(1)
    if slopes_CV is not None:
        onehot_CV = torch.where(_is_target(logp_CV, targets_C), 1.0, 0.0)
        slopes_CV.copy_((onehot_CV - logp_CV.exp()) / temperature)
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
    target_CV = torch.where(_is_target(logp_CV, targets_C), grad_C[:, None], 0.0)
    return ((target_CV - logp_CV.exp() * factor_CV) / temperature).to(dtype)


def _is_target(logp_CV: torch.Tensor, targets_C: torch.Tensor) -> torch.Tensor:
    """Return bool [C, V], True at the targets."""
    index_V = torch.arange(logp_CV.shape[1], device=logp_CV.device)
    return index_V == targets_C[:, None]


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
