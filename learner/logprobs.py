"""Log-probs and entropies of packed rows; the logits of more than a chunk of tokens never exist.

PolicyModel is what DeepSpeed wraps: the transformers model and the head that turns hidden states
into log-probs. The model stays as transformers made it: `policy.model` has the checkpoint's names,
but for projections that peft put an adapter beside (learner.weights translates).

Letters of shapes: R rows, T tokens of a row, N wanted tokens, C tokens of a chunk, H hidden size,
V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch

from learner.attention import attention_implementation, tree_mask
from learner.lora import add_adapters
from rlsys.config import LoraConfig
from rlsys.errors import ModelError

ARCHITECTURES = ("llama", "qwen2", "qwen3")
"""Model types whose every layer is causal and knows positions only through rotary angles."""


class PolicyModel(torch.nn.Module):  # type: ignore[misc]
    """A causal language model whose forward pass returns log-probs of packed rows."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.head = LogprobHead(model.get_output_embeddings().weight)
        self.register_state_dict_post_hook(_leave_out_frozen)

    def forward(
        self,
        token_ids_RT: torch.Tensor,
        positions_RT: torch.Tensor,
        parents_RT: torch.Tensor,
        exits_RT: torch.Tensor,
        select_RT: torch.Tensor,
        *,
        temperature: float,
        chunk: int,
        entropy: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the log-prob of every selected token given its path, and the entropy there.

        Args:
            token_ids_RT, positions_RT, parents_RT, exits_RT: integers, fields of PackedRows.
            select_RT: bool, tokens whose log-prob is wanted; the others cost no logits.
            temperature: logits are divided by it before the softmax.
            chunk: tokens whose logits exist at once.
            entropy: whether to compute entropies too.

        Returns:
            [R, T] float32 log-probs and entropies in nats, 0 where not selected and at root tokens
            (nothing predicts them); None in place of entropies that were not asked for.
        """
        hidden_RTH = self.model.base_model(
            input_ids=token_ids_RT.long(),
            position_ids=positions_RT.long(),
            attention_mask=tree_mask(exits_RT),
            use_cache=False,
        ).last_hidden_state
        flat_N = (select_RT & (parents_RT >= 0)).flatten().nonzero().squeeze(-1)
        rows_N = flat_N // token_ids_RT.shape[1]
        before_N = rows_N * token_ids_RT.shape[1] + parents_RT.flatten()[flat_N]
        logprobs_N, entropy_N = self.head(
            hidden_RTH.flatten(0, 1).index_select(0, before_N),
            token_ids_RT.flatten()[flat_N].long(),
            temperature=temperature,
            chunk=chunk,
            entropy=entropy,
        )
        zeros = torch.zeros(token_ids_RT.numel(), device=hidden_RTH.device)

        def spread(values_N: torch.Tensor) -> torch.Tensor:
            return zeros.index_copy(0, flat_N, values_N).view(token_ids_RT.shape)

        return spread(logprobs_N), spread(entropy_N) if entropy else None


def _leave_out_frozen(module: Any, state: dict[str, Any], prefix: str, _local: Any) -> None:
    """Drop frozen weights from a state dict under all their names; DeepSpeed knows only the first.

    They are those of the starting policy, and a checkpoint need not hold them.
    """
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if not parameter.requires_grad:
            state.pop(prefix + name, None)


class LogprobHead(torch.nn.Module):  # type: ignore[misc]
    """The output embedding and a softmax, from hidden states to log-probs.

    It holds the model's own parameter, tied or not, under a second name: DeepSpeed ZeRO-3 gathers
    the parameters of a module around its forward and backward pass, so the whole loop over chunks
    runs with one gather each.
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
    With p the probabilities and H the
    entropy, d logprob / d logits = onehot - p and d H / d logits = -p (log p + H).
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_NH: torch.Tensor,
        weight_VH: torch.Tensor,
        targets_N: torch.Tensor,
        temperature: float,
        chunk: int,
        entropy: bool,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        logprobs_N = torch.empty(len(targets_N), device=hidden_NH.device)
        entropy_N = torch.empty_like(logprobs_N) if entropy else None
        for part in _parts(len(targets_N), chunk):
            logp_CV = _log_softmax(hidden_NH[part], weight_VH, temperature)
            logprobs_N[part] = logp_CV.gather(1, targets_N[part, None]).squeeze(1)
            if entropy_N is not None:
                entropy_N[part] = -(logp_CV.exp().mul_(logp_CV)).sum(1)
        ctx.save_for_backward(hidden_NH, weight_VH, targets_N, entropy_N)
        ctx.temperature, ctx.chunk = temperature, chunk
        ctx.set_materialize_grads(False)  # an entropy that is only logged costs no backward pass
        return logprobs_N, entropy_N

    @staticmethod
    def backward(ctx: Any, grad_logprobs_N: Any, grad_entropy_N: Any) -> tuple[Any, ...]:
        hidden_NH, weight_VH, targets_N, entropy_N = ctx.saved_tensors
        if grad_logprobs_N is None:
            grad_logprobs_N = torch.zeros_like(entropy_N)
        grad_hidden_NH = torch.empty_like(hidden_NH)
        grad_weight_VH = None
        if ctx.needs_input_grad[1]:
            # Summed in float32: bfloat16 would lose the later chunks of a long batch.
            grad_weight_VH = torch.zeros_like(weight_VH, dtype=torch.float32)
        for part in _parts(len(targets_N), ctx.chunk):
            logp_CV = _log_softmax(hidden_NH[part], weight_VH, ctx.temperature)
            grad_C1 = grad_logprobs_N[part, None]
            grad_CV = logp_CV.exp()
            if grad_entropy_N is None:
                grad_CV.mul_(-grad_C1)
            else:
                slope_CV = logp_CV.add_(entropy_N[part, None]).mul_(grad_entropy_N[part, None])
                grad_CV.mul_(slope_CV.add_(grad_C1).neg_())
            grad_CV.scatter_add_(1, targets_N[part, None], grad_C1)
            grad_CV = grad_CV.div_(ctx.temperature).to(weight_VH.dtype)
            grad_hidden_NH[part] = grad_CV @ weight_VH
            if grad_weight_VH is not None:
                grad_weight_VH += _matmul_float32(grad_CV.T, hidden_NH[part])
        if grad_weight_VH is not None:
            grad_weight_VH = grad_weight_VH.to(weight_VH.dtype)
        return grad_hidden_NH, grad_weight_VH, None, None, None, None


def _parts(length: int, chunk: int) -> list[slice]:
    return [slice(start, start + chunk) for start in range(0, length, chunk)]


def _log_softmax(
    hidden_CH: torch.Tensor, weight_VH: torch.Tensor, temperature: float
) -> torch.Tensor:
    """Return float32 log-probs [C, V]."""
    logits_CV = _matmul_float32(hidden_CH, weight_VH.T)
    return torch.log_softmax(logits_CV.div_(temperature), dim=-1)


def _matmul_float32(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Matrix product in float32: logits rounded to bfloat16 would be off by 0.06 nats at 16."""
    if left.dtype != torch.float32 and left.device.type == "cuda":
        return torch.mm(left, right, out_dtype=torch.float32)  # tensor cores, unrounded sums
    return left.float() @ right.float()


def load_policy(
    path: str,
    *,
    dtype: torch.dtype,
    device: torch.device,
    gradient_checkpointing: bool,
    lora: LoraConfig | None = None,
) -> PolicyModel:
    """Load a checkpoint folder (or hub name) for training; code shipped with it is never run.

    With `lora` its weights are frozen and adapters are trained in their place.

    Raises:
        ModelError: the model's type is not one whose attention the tree mask covers.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(path, trust_remote_code=False)
    if config.model_type not in ARCHITECTURES or getattr(config, "use_sliding_window", False):
        raise ModelError(
            f"model {path!r} has type {config.model_type!r}; tree attention needs one of "
            f"{', '.join(ARCHITECTURES)} without sliding windows"
        )
    model = AutoModelForCausalLM.from_pretrained(
        path,
        dtype=dtype,
        attn_implementation=attention_implementation(device.type),
        attention_dropout=0.0,  # the ratio to the sampling policy must be 1 before the first step
        trust_remote_code=False,
    ).to(device)
    if lora is not None:
        add_adapters(model, lora)
    if gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return PolicyModel(model.train())
