"""Arithmetic that a model needs for a training step, for TFLOP/s and MFU.

Counted is what the model itself needs: one forward and one backward pass over the tokens of the
trees. Padding, activations that are computed again, and forward passes for old log-probs or frozen
models are left out, as is usual for MFU (Chowdhery et al., arXiv 2204.02311, Appendix B).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from rlsys.planning.cards import known_card

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from learner.batch import MicroBatch

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""Names under which the settings of mixture models have the number of experts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """FLOPs per token, per predicted token and per visible pair, forward and backward together."""

    token: float
    predicted: float
    """The output head, which computes logits of wanted tokens only."""
    pair: float
    """A query and a key that it sees, over all layers."""

    def flops(self, micro: MicroBatch) -> float:
        """Return the FLOPs of a micro-batch."""
        return (
            self.token * micro.num_tokens
            + self.predicted * micro.num_trained
            + self.pair * micro.num_pairs
        )


def step_cost(model: PreTrainedModel) -> StepCost:
    """Return what a step of this model costs; parameters may be partitioned by ZeRO-3.

    A weight costs a multiplication and an addition in the forward pass, the same for the gradient
    of its input, and the same for its own gradient if it is trained. Layers with sliding windows
    count as if they saw the whole path.
    """
    settings = model.config.get_text_config()
    head = model.get_output_embeddings().weight
    tables = [m.weight for m in model.modules() if isinstance(m, torch.nn.Embedding)]
    left_out = {id(table) for table in [*tables, head]}
    used = _used_experts(model)
    linear = 0.0
    for name, parameter in model.named_parameters():
        if id(parameter) not in left_out and len(_shape(parameter)) > 1:
            linear += _per_use(parameter) * (used if ".experts." in name else 1.0)
    heads = getattr(settings, "num_attention_heads", None) or 0  # none in a state-space model
    size = getattr(settings, "head_dim", None) or _shape(head)[1] // max(heads, 1)
    # Two products of head_dim forward, for the score and for the value, and twice as much backward.
    pair = 3 * 4 * settings.num_hidden_layers * heads * size
    return StepCost(token=linear, predicted=_per_use(head), pair=float(pair))


def peak_flops(device: torch.device, dtype: str) -> float | None:
    """Return the FLOP/s of the card's data sheet; None on the CPU and for an unknown card."""
    if device.type != "cuda":
        return None
    properties = torch.cuda.get_device_properties(device)
    card = known_card(properties.name, properties.total_memory / 2**30)
    return None if card is None else card.operations(2 if dtype == "bfloat16" else 4)


def _per_use(parameter: torch.nn.Parameter) -> float:
    return float(_shape(parameter).numel() * (6 if parameter.requires_grad else 4))


def _shape(parameter: torch.nn.Parameter) -> torch.Size:
    """Return the whole shape, also of a parameter of which ZeRO-3 keeps a part here."""
    return torch.Size(getattr(parameter, "ds_shape", parameter.shape))


def _used_experts(model: PreTrainedModel) -> float:
    """Return the share of the experts that computes a token."""
    settings = model.config.get_text_config()
    counts = (getattr(settings, name, None) for name in _EXPERTS)
    experts = next((count for count in counts if count), None)
    chosen = getattr(settings, "num_experts_per_tok", None)
    return chosen / experts if experts and chosen else 1.0
